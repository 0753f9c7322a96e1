// Makes and reads ledgers with Apache BookKeeper's own client. What it says begins with SAID.
// The system property `settings` names a file with further settings of the client.
import java.io.File;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.Enumeration;
import java.util.HexFormat;
import java.util.Map;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

public class Ledgers {
  static final int ENTRIES = 200;

  static BookKeeper client(String uri, boolean v2) throws Exception {
    ClientConfiguration conf = new ClientConfiguration();
    conf.setMetadataServiceUri(uri);
    conf.setUseV2WireProtocol(v2);
    String settings = System.getProperty("settings");
    if (settings != null) conf.loadConf(new File(settings).toURI().toURL());
    return new BookKeeper(conf);
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
            LedgerHandle ledger = client.createLedger(3, quorum, 2, type, "secret".getBytes(), Map.of("who", "me".getBytes()));
            for (int i = 0; i < ENTRIES; i++) ledger.addEntry(("entry " + i + " of " + ledger.getId()).getBytes());
            if (end.equals("closed")) ledger.close();
            say(ledger.getId(), type, quorum, end);
          }
        }
      }
    }
  }

  // write PROTOCOL QUORUM DIGEST: appends to a ledger until it is killed, and says what is acknowledged.
  static void write(String uri, boolean v2, int quorum, DigestType type) throws Exception {
    LedgerHandle ledger = client(uri, v2).createLedger(3, quorum, 2, type, "secret".getBytes());
    say("writing", ledger.getId());
    for (int i = 0; ; i++) {
      ledger.asyncAddEntry(("entry " + i + " of " + ledger.getId()).getBytes(), (rc, handle, id, context) -> {
        if (rc == 0) say("acknowledged", id);
      }, null);
      if (i % 20 == 0) Thread.sleep(2);
    }
  }

  // try PROTOCOL: appends one entry to a ledger of three bookies, reads it, and says what came of it.
  static void attempt(String uri, boolean v2) throws Exception {
    try {
      LedgerHandle ledger = client(uri, v2).createLedger(3, 3, 2, DigestType.CRC32C, "secret".getBytes());
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
      byte[] password = "secret".getBytes();
      LedgerHandle ledger = recover ? client.openLedger(id, type, password) : client.openLedgerNoRecovery(id, type, password);
      MessageDigest hash = MessageDigest.getInstance("SHA-256");
      long last = ledger.getLastAddConfirmed();
      if (last >= 0) {
        for (Enumeration<LedgerEntry> found = ledger.readEntries(0, last); found.hasMoreElements();) {
          byte[] entry = found.nextElement().getEntry();
          hash.update(ByteBuffer.allocate(4).putInt(entry.length).array());
          hash.update(entry);
        }
      }
      say(words[i], ledger.isClosed(), last, ledger.getLength(), HexFormat.of().formatHex(hash.digest()));
    }
  }

  public static void main(String[] words) {
    try {
      switch (words[1]) {
        case "make" -> make(words[0]);
        case "write" -> write(words[0], words[2].equals("v2"), Integer.parseInt(words[3]), DigestType.valueOf(words[4]));
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
