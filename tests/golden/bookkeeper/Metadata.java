// Prints ledger metadata, LAYOUT, cookies and registrations as Apache BookKeeper's own classes make them, a line each: a
// name, and hexadecimal digits. How to run it: README.md.
package org.apache.bookkeeper.discover;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.netty.buffer.ByteBufUtil;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.bookkeeper.bookie.Cookie;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.discover.BookieServiceInfo.Endpoint;
import org.apache.bookkeeper.meta.LedgerLayout;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.util.StringUtils;

public class Metadata {
  static void print(String name, byte[] made) {
    System.out.println(name + " " + ByteBufUtil.hexDump(made));
  }

  static List<BookieId> ensemble(String... names) {
    List<BookieId> ids = new ArrayList<>();
    for (String name : names) ids.add(BookieId.parse(name));
    return ids;
  }

  static LedgerMetadataBuilder one(int version) {
    LedgerMetadataBuilder made = LedgerMetadataBuilder.create().withId(7).withMetadataFormatVersion(version)
        .withEnsembleSize(1).withWriteQuorumSize(1).withAckQuorumSize(1)
        .newEnsembleEntry(0, ensemble("127.0.0.1:3181"));
    if (version > 1) made.withDigestType(DigestType.CRC32C).withPassword(new byte[0]);
    return made;
  }

  static LedgerMetadataBuilder three(int version) {
    LedgerMetadataBuilder made = LedgerMetadataBuilder.create().withId(7).withMetadataFormatVersion(version)
        .withEnsembleSize(3).withWriteQuorumSize(2).withAckQuorumSize(2)
        .newEnsembleEntry(0, ensemble("host-a.example.org:3181", "bookie_b", "10.0.0.3:3181"))
        .newEnsembleEntry(1L << 40, ensemble("host-a.example.org:3181", "bookie_b", "d.4"));
    if (version > 1) made.withDigestType(DigestType.MAC).withPassword("secret".getBytes(UTF_8));
    return made;
  }

  static void ledger(String name, LedgerMetadataBuilder made) throws Exception {
    print("ledger " + name, new LedgerMetadataSerDe().serialize(made.build()));
  }

  public static void main(String[] arguments) throws Exception {
    Map<String, byte[]> custom = new LinkedHashMap<>();
    custom.put("application", "pulsar".getBytes(UTF_8));
    custom.put("empty", new byte[0]);
    custom.put("bytes", new byte[] {0, 1, (byte) 0xff, '"', '\\', '\n', '\''});
    custom.put("n\u00e4me", "\u20ac".getBytes(UTF_8));
    for (int version = 1; version <= 3; version++) {
      String v = "v" + version + " ";
      ledger(v + "open", one(version));
      ledger(v + "recovering", one(version).withInRecoveryState());
      ledger(v + "closed", one(version).withClosedState().withLastEntryId(41).withLength(4200));
      ledger(v + "empty", one(version).withClosedState().withLastEntryId(-1).withLength(0));
      ledger(v + "fragments open", three(version));
      ledger(v + "fragments recovering", three(version).withInRecoveryState());
      ledger(v + "fragments closed", three(version).withClosedState().withLastEntryId((1L << 40) + 5).withLength(1L << 50));
      ledger(v + "fragments early", three(version).withClosedState().withLastEntryId(9).withLength(90));
      if (version == 1) continue;
      for (DigestType type : DigestType.values()) ledger(v + "digest " + type, one(version).withDigestType(type));
      ledger(v + "password", one(version).withPassword(new byte[] {0, 10, '"', (byte) 0x80, (byte) 0xff}));
      ledger(v + "custom", one(version).withCustomMetadata(custom));
      ledger(v + "created", one(version).withCreationTime(1764032400123L).storingCreationTime(true));
      ledger(v + "token", one(version).withCToken(-0x123456789abcdefL));
    }
    for (String factory : new String[] {"Hierarchical", "LegacyHierarchical", "LongHierarchical", "Flat"}) {
      print("layout " + factory, new LedgerLayout("org.apache.bookkeeper.meta." + factory + "LedgerManagerFactory", 1).serialize());
    }
    for (long id : new long[] {0, 1, 99999999, 0x7ffffffeL, 0x7fffffffL, 1L << 32 | 1, Long.MAX_VALUE}) {
      print("path " + id, StringUtils.getHybridHierarchicalLedgerPath(id).getBytes(UTF_8));
    }
    Cookie.Builder cookie = Cookie.newBuilder().setBookieId("127.0.0.1:3181").setJournalDirs("/journal")
        .setLedgerDirs(Cookie.encodeDirPaths(new String[] {"/ledgers/a", "/ledgers/b \"c\""}));
    print("cookie plain", cookie.build().toString().getBytes(UTF_8));
    print("cookie instance", cookie.setInstanceId("3b1d1f1e-5b7a-4b43-9d3b-0a4d8a5a6c11").build().toString().getBytes(UTF_8));
    print("cookie index", cookie.setIndexDirs(Cookie.encodeDirPaths(new String[] {"/index"})).build().toString().getBytes(UTF_8));
    print("cookie v4", Cookie.newBuilder(cookie.build()).setLayoutVersion(4).build().toString().getBytes(UTF_8));

    BookieServiceInfo info = new BookieServiceInfo();
    print("service none", ZKRegistrationManager.serializeBookieServiceInfo(info));
    Endpoint rpc = new Endpoint("bookie", 3181, "host-a.example.org", "bookie-rpc", List.of("sasl"), List.of("tls"));
    Endpoint http = new Endpoint("httpserver", 8080, "0.0.0.0", "http", List.of(), List.of());
    info.setEndpoints(List.of(http, rpc));
    print("service endpoints", ZKRegistrationManager.serializeBookieServiceInfo(info));
    info.setProperties(Map.of("zone", "a"));
    print("service properties", ZKRegistrationManager.serializeBookieServiceInfo(info));
  }
}
