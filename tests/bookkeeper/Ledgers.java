// Makes and reads ledgers with Apache BookKeeper's own client, of 4.8 or newer. What it says begins with SAID.
// The system property `settings` names a file with further settings of the client.
import java.io.File;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.Enumeration;
import java.util.HexFormat;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

public class Ledgers {
  static final int ENTRIES = 200;
  static final int READ_AT_ONCE = 200;
  static final int EXPLICIT_LAC_MS = 50;
  static final byte[] PASSWORD = "secret".getBytes();

  static ClientConfiguration settings(String uri, boolean v2) throws Exception {
    ClientConfiguration conf = new ClientConfiguration();
    conf.setMetadataServiceUri(uri);
    conf.setUseV2WireProtocol(v2);
    String file = System.getProperty("settings");
    if (file != null) conf.loadConf(new File(file).toURI().toURL());
    return conf;
  }

  static BookKeeper client(String uri, boolean v2) throws Exception {
    return new BookKeeper(settings(uri, v2));
  }

  static byte[] entry(long n, long ledger) {
    return ("entry " + n + " of " + ledger).getBytes();
  }

  static void say(Object... words) {
    StringBuilder line = new StringBuilder("SAID");
    for (Object word : words) line.append(' ').append(word);
    synchronized (System.out) {
      System.out.println(line);
      System.out.flush();
    }
  }

  // make: a closed and an open ledger of each kind: id, digest, write quorum, closed or open.
  static void make(String uri) throws Exception {
    for (boolean v2 : new boolean[] {false, true}) {
      BookKeeper client = client(uri, v2);
      for (int quorum = 2; quorum <= 3; quorum++) {
        for (DigestType type : DigestType.values()) {
          for (String end : new String[] {"closed", "open"}) {
            LedgerHandle ledger = client.createLedger(3, quorum, 2, type, PASSWORD, Map.of("who", "me".getBytes()));
            for (int i = 0; i < ENTRIES; i++) ledger.addEntry(entry(i, ledger.getId()));
            if (end.equals("closed")) ledger.close();
            say(ledger.getId(), type, quorum, end);
          }
        }
      }
    }
  }

  // write PROTOCOL DIGEST PAUSE_MS QUORUM...: appends to a ledger of each quorum, 20 entries between pauses, until all
  // have failed; says the ledger's id first, then what is acknowledged, and why it has failed.
  static void write(String uri, boolean v2, DigestType type, long pause, String[] words) throws Exception {
    BookKeeper client = client(uri, v2);
    Set<LedgerHandle> ledgers = ConcurrentHashMap.newKeySet();
    for (int i = 5; i < words.length; i++) {
      LedgerHandle ledger = client.createLedger(3, Integer.parseInt(words[i]), 2, type, PASSWORD);
      say("writing", ledger.getId());
      ledgers.add(ledger);
    }
    for (int i = 0; !ledgers.isEmpty(); i++) {
      for (LedgerHandle ledger : ledgers) {
        ledger.asyncAddEntry(entry(i, ledger.getId()), (rc, handle, id, context) -> {
          if (rc == 0) say("acknowledged", ledger.getId(), id);
          else if (ledgers.remove(ledger)) say("failed", ledger.getId(), rc);
        }, null);
      }
      if (i % 20 == 0) Thread.sleep(pause);
    }
  }

  // live PROTOCOL EXPLICIT_LAC: of each digest a ledger's life: id, digest, and how far each step came.
  static void live(String uri, boolean v2, boolean explicitLac) throws Exception {
    ClientConfiguration conf = settings(uri, v2);
    conf.setExplictLacInterval(explicitLac ? EXPLICIT_LAC_MS : 0);
    BookKeeper client = new BookKeeper(conf);
    BookKeeper other = client(uri, v2);
    for (DigestType type : DigestType.values()) {
      LedgerHandle writer = client.createLedger(3, 3, 2, type, PASSWORD);
      long id = writer.getId();
      LedgerHandle reader = other.openLedgerNoRecovery(id, type, PASSWORD);
      writer.addEntry(entry(0, id));
      long followed = 0, waited = 0;
      for (int i = 1; i < 10; i++) {
        writer.addEntry(entry(i, id));
        if (reader.readLastConfirmed() >= i - 1) followed++;
        if (reader.readLastAddConfirmedAndEntryAsync(i - 1, 10_000, false).get().getLastAddConfirmed() >= i - 1) waited++;
      }
      while (explicitLac && reader.readExplicitLastConfirmed() < 9) Thread.sleep(EXPLICIT_LAC_MS);
      int tailed = 0;
      for (Enumeration<LedgerEntry> found = reader.readEntries(0, explicitLac ? 9 : 8); found.hasMoreElements(); tailed++) {
        if (!new String(found.nextElement().getEntry()).equals(new String(entry(tailed, id)))) throw new Exception("other bytes");
      }
      LedgerHandle recovered = other.openLedger(id, type, PASSWORD);
      String fate = "written";
      try {
        writer.addEntry(entry(10, id));
      } catch (BKException.BKLedgerFencedException e) {
        fate = "fenced";
      }
      long end = other.openLedger(id, type, PASSWORD).getLastAddConfirmed();
      client.deleteLedger(id);
      String left = "there";
      try {
        other.openLedger(id, type, PASSWORD);
      } catch (BKException e) {
        left = e.getClass().getSimpleName().startsWith("BKNoSuchLedgerExists") ? "deleted" : e.toString();
      }
      say(id, type, followed, waited, tailed, recovered.isClosed(), fate, end, left);
    }
  }

  // try PROTOCOL: appends one entry to a ledger of three bookies, reads it, and says what came of it.
  static void attempt(String uri, boolean v2) throws Exception {
    try {
      LedgerHandle ledger = client(uri, v2).createLedger(3, 3, 2, DigestType.CRC32C, PASSWORD);
      ledger.addEntry("an entry".getBytes());
      ledger.close();
      say("read", ledger.getId(), new String(ledger.readLastEntry().getEntry()));
    } catch (BKException e) {
      say("refused", e.getClass().getSimpleName());
    }
  }

  // read ID DIGEST...: of each ledger whether it is closed, its last entry, its length, and a hash of its entries.
  // recover PROTOCOL ID DIGEST...: the same, after its recovery.
  static void read(BookKeeper client, boolean recover, String[] words, int from) throws Exception {
    for (int i = from; i < words.length; i += 2) {
      long id = Long.parseLong(words[i]);
      DigestType type = DigestType.valueOf(words[i + 1]);
      LedgerHandle ledger = recover ? client.openLedger(id, type, PASSWORD) : client.openLedgerNoRecovery(id, type, PASSWORD);
      MessageDigest hash = MessageDigest.getInstance("SHA-256");
      long last = ledger.getLastAddConfirmed();
      for (long first = 0; first <= last; first += READ_AT_ONCE) {
        long end = Math.min(last, first + READ_AT_ONCE - 1);
        for (Enumeration<LedgerEntry> found = ledger.readEntries(first, end); found.hasMoreElements();) {
          byte[] entry = found.nextElement().getEntry();
          hash.update(ByteBuffer.allocate(4).putInt(entry.length).array());
          hash.update(entry);
        }
      }
      say(id, ledger.isClosed(), last, ledger.getLength(), HexFormat.of().formatHex(hash.digest()));
    }
  }

  public static void main(String[] words) {
    try {
      switch (words[1]) {
        case "make" -> make(words[0]);
        case "write" -> write(words[0], words[2].equals("v2"), DigestType.valueOf(words[3]), Long.parseLong(words[4]), words);
        case "live" -> live(words[0], words[2].equals("v2"), Boolean.parseBoolean(words[3]));
        case "try" -> attempt(words[0], words[2].equals("v2"));
        case "recover" -> read(client(words[0], words[2].equals("v2")), true, words, 3);
        default -> read(client(words[0], true), false, words, 2);
      }
      Runtime.getRuntime().halt(0);
    } catch (Exception e) {
      e.printStackTrace(System.out);
      Runtime.getRuntime().halt(1);
    }
  }
}
