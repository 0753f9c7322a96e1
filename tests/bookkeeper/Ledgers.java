// Makes and reads ledgers with Apache BookKeeper's own client. What it says begins with SAID.
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.Enumeration;
import java.util.HexFormat;
import java.util.Map;
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

  // read ID DIGEST...: of each ledger whether it is closed, its last entry, its length, and a hash of its entries.
  static void read(String uri, String[] words) throws Exception {
    BookKeeper client = client(uri, true);
    for (int i = 2; i < words.length; i += 2) {
      LedgerHandle ledger = client.openLedgerNoRecovery(Long.parseLong(words[i]), DigestType.valueOf(words[i + 1]), "secret".getBytes());
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

  public static void main(String[] words) throws Exception {
    switch (words[1]) {
      case "make" -> make(words[0]);
      case "write" -> write(words[0], words[2].equals("v2"), Integer.parseInt(words[3]), DigestType.valueOf(words[4]));
      default -> read(words[0], words);
    }
    Runtime.getRuntime().halt(0);
  }
}
