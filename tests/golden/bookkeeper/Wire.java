// Prints keys, entries and frames as Apache BookKeeper's own classes make them, a line each: a name, and hexadecimal
// digits. In their package, since packets of v2 are private to it. How to run it: README.md.
package org.apache.bookkeeper.proto;

import static java.nio.charset.StandardCharsets.UTF_8;

import com.google.protobuf.ByteString;
import com.google.protobuf.ExtensionRegistry;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import io.netty.buffer.UnpooledByteBufAllocator;
import org.apache.bookkeeper.proto.BookkeeperProtocol.*;
import org.apache.bookkeeper.proto.DataFormats.LedgerMetadataFormat.DigestType;
import org.apache.bookkeeper.proto.checksum.DigestManager;
import org.apache.bookkeeper.util.ByteBufList;

public class Wire {
  static final UnpooledByteBufAllocator HEAP = new UnpooledByteBufAllocator(false);
  static final ExtensionRegistry NONE = ExtensionRegistry.newInstance();
  static final long LEDGER = 123456789012L, TXN = 0x8000000000000001L;
  static final byte[] PASSWORD = "secret".getBytes(UTF_8);
  static final byte VERSION = 2;
  static final short FENCE = 1, RECOVERY = 2, HIGH = 4;

  static byte[] bytes(Object made) {
    if (made instanceof ByteBufList) return ((ByteBufList) made).toArray();
    return ByteBufUtil.getBytes((ByteBuf) made);
  }

  static void print(String name, Object made) {
    System.out.println(name + " " + ByteBufUtil.hexDump(made instanceof byte[] ? (byte[]) made : bytes(made)));
  }

  static DigestManager manager(DigestType type, boolean v2) throws Exception {
    return DigestManager.instantiate(LEDGER, PASSWORD, type, HEAP, v2);
  }

  static byte[] data(int size) {
    byte[] data = new byte[size];
    for (int i = 0; i < size; i++) data[i] = (byte) (i * 7);
    return data;
  }

  static byte[] entry(DigestType type, long id, long lac, long length, byte[] data) throws Exception {
    return bytes(manager(type, false).computeDigestAndPackageForSending(id, lac, length, Unpooled.wrappedBuffer(data), null, 0));
  }

  static void packet(String name, BookieProtocol.Request request) throws Exception {
    print("v2 " + name, new BookieProtoEncoding.RequestEnDeCoderPreV3(NONE).encode(request, HEAP));
  }

  static void packet(String name, BookieProtocol.Response response) throws Exception {
    print("v2 " + name, new BookieProtoEncoding.ResponseEnDeCoderPreV3(NONE).encode(response, HEAP));
  }

  static BKPacketHeader header(OperationType operation, int priority) {
    BKPacketHeader.Builder header = BKPacketHeader.newBuilder()
        .setVersion(ProtocolVersion.VERSION_THREE).setOperation(operation).setTxnId(TXN);
    if (priority > 0) header.setPriority(priority);
    return header.build();
  }

  static Request.Builder request(OperationType operation) {
    return Request.newBuilder().setHeader(header(operation, 0));
  }

  static Response.Builder response(OperationType operation, StatusCode status) {
    return Response.newBuilder().setHeader(header(operation, 0)).setStatus(status);
  }

  static void message(String name, Request.Builder request) throws Exception {
    print("v3 " + name, new BookieProtoEncoding.RequestEnDecoderV3(NONE).encode(request.build(), HEAP));
  }

  static void message(String name, Response.Builder response) throws Exception {
    print("v3 " + name, new BookieProtoEncoding.ResponseEnDecoderV3(NONE).encode(response.build(), HEAP));
  }

  public static void main(String[] arguments) throws Exception {
    byte[] key = DigestManager.generateMasterKey(PASSWORD);
    print("key secret", key);
    print("key empty", DigestManager.generateMasterKey(new byte[0]));

    for (DigestType type : DigestType.values()) {
      print("entry " + type + " first", entry(type, 0, -1, 20, data(20)));
      print("entry " + type + " empty", entry(type, 5, 4, 1000, new byte[0]));
      print("entry " + type + " large", entry(type, 1L << 40, 6, 1L << 50, data(3000)));
      print("lac " + type, manager(type, false).computeDigestAndPackageForSendingLac(41));
      print("lac " + type + " none", manager(type, true).computeDigestAndPackageForSendingLac(-1));
      for (int size : new int[]{20, 3000})
        print("v2 add " + type + " " + size, manager(type, true).computeDigestAndPackageForSending(
            7, 6, 5000, Unpooled.wrappedBuffer(data(size)), key, size == 20 ? 0 : RECOVERY | HIGH));
    }

    packet("read", BookieProtocol.ReadRequest.create(VERSION, LEDGER, 7, (short) 0, null));
    packet("read last", BookieProtocol.ReadRequest.create(VERSION, LEDGER, -1, (short) 0, null));
    packet("read fence", BookieProtocol.ReadRequest.create(VERSION, LEDGER, -1, (short) (FENCE | HIGH), key));
    packet("batch", BookieProtocol.BatchedReadRequest.create(VERSION, LEDGER, 7, (short) 0, null, 99, 100, 1 << 20));
    packet("batch fence", BookieProtocol.BatchedReadRequest.create(VERSION, LEDGER, 7, FENCE, key, 99, 0, 5 << 20));
    AuthMessage auth = AuthMessage.newBuilder().setAuthPluginName("plugin").setPayload(ByteString.copyFrom(data(5))).build();
    packet("auth", new BookieProtocol.AuthRequest(VERSION, auth));

    byte[] small = entry(DigestType.CRC32C, 7, 6, 5000, data(20));
    for (int code : new int[]{0, 1, 2, 100, 101, 102, 103, 104, 105, 106, 107})
      packet("added " + code, BookieProtocol.AddResponse.create(VERSION, code, LEDGER, 7));
    packet("found", new BookieProtocol.ReadResponse(VERSION, 0, LEDGER, 7, Unpooled.wrappedBuffer(small)));
    packet("denied", new BookieProtocol.ReadResponse(VERSION, 2, LEDGER, -1));
    ByteBufList several = ByteBufList.get(Unpooled.wrappedBuffer(small));
    several.add(Unpooled.wrappedBuffer(entry(DigestType.CRC32C, 8, 6, 5000, new byte[0])));
    several.add(Unpooled.wrappedBuffer(entry(DigestType.CRC32C, 9, 6, 8000, data(3000))));
    packet("batch found", new BookieProtocol.BatchedReadResponse(VERSION, 0, LEDGER, 7, 99, several));
    packet("batch denied", new BookieProtocol.BatchedReadResponse(VERSION, 1, LEDGER, 7, 99));
    packet("auth reply", new BookieProtocol.AuthResponse(VERSION, auth));

    ByteString k = ByteString.copyFrom(key), body = ByteString.copyFrom(small);
    ByteString lac = ByteString.copyFrom(bytes(manager(DigestType.CRC32C, false).computeDigestAndPackageForSendingLac(6)));
    ReadRequest read = ReadRequest.newBuilder().setLedgerId(LEDGER).setEntryId(7).build();
    OperationType o = OperationType.READ_ENTRY;
    message("read", request(o).setReadRequest(read));
    message("read last", request(o).setReadRequest(read.toBuilder().setEntryId(-1)));
    message("read fence", request(o).setHeader(header(o, 100)).setReadRequest(
        read.toBuilder().setFlag(ReadRequest.Flag.FENCE_LEDGER).setMasterKey(k)));
    message("poll", request(o).setReadRequest(read.toBuilder().setEntryId(-1).setPreviousLAC(4).setTimeOut(300)));
    message("poll piggyback", request(o).setReadRequest(read.toBuilder().setEntryId(-1).setPreviousLAC(-1).setTimeOut(300)
        .setFlag(ReadRequest.Flag.ENTRY_PIGGYBACK)));
    message("read context", request(o).setReadRequest(read)
        .addRequestContext(ContextPair.newBuilder().setKey("who").setValue("me")));
    AddRequest add = AddRequest.newBuilder().setLedgerId(LEDGER).setEntryId(7).setMasterKey(k).setBody(body).build();
    o = OperationType.ADD_ENTRY;
    message("add", request(o).setAddRequest(add));
    message("add recovery", request(o).setHeader(header(o, 100)).setAddRequest(
        add.toBuilder().setFlag(AddRequest.Flag.RECOVERY_ADD)));
    message("add deferred", request(o).setAddRequest(add.toBuilder().setWriteFlags(1)));
    message("auth", request(OperationType.AUTH).setAuthRequest(auth));
    message("write lac", request(OperationType.WRITE_LAC).setWriteLacRequest(
        WriteLacRequest.newBuilder().setLedgerId(LEDGER).setLac(6).setMasterKey(k).setBody(lac)));
    message("read lac", request(OperationType.READ_LAC).setReadLacRequest(ReadLacRequest.newBuilder().setLedgerId(LEDGER)));
    message("info", request(OperationType.GET_BOOKIE_INFO).setGetBookieInfoRequest(
        GetBookieInfoRequest.newBuilder().setRequested(3)));
    message("tls", request(OperationType.START_TLS).setStartTLSRequest(StartTLSRequest.newBuilder()));
    message("force", request(OperationType.FORCE_LEDGER).setForceLedgerRequest(
        ForceLedgerRequest.newBuilder().setLedgerId(LEDGER)));
    o = OperationType.GET_LIST_OF_ENTRIES_OF_LEDGER;
    message("list", request(o).setGetListOfEntriesOfLedgerRequest(
        GetListOfEntriesOfLedgerRequest.newBuilder().setLedgerId(LEDGER)));

    StatusCode ok = StatusCode.EOK;
    o = OperationType.READ_ENTRY;
    ReadResponse found = ReadResponse.newBuilder().setStatus(ok).setLedgerId(LEDGER).setEntryId(7).build();
    message("found", response(o, ok).setReadResponse(found.toBuilder().setBody(body).setMaxLAC(6)));
    message("polled", response(o, ok).setReadResponse(
        found.toBuilder().setEntryId(-1).setMaxLAC(6).setLacUpdateTimestamp(1234567890123L)));
    message("denied", response(o, StatusCode.ENOENTRY).setReadResponse(found.toBuilder().setStatus(StatusCode.ENOENTRY)));
    o = OperationType.ADD_ENTRY;
    for (StatusCode status : StatusCode.values())
      message("added " + status, response(o, status).setAddResponse(
          AddResponse.newBuilder().setStatus(status).setLedgerId(LEDGER).setEntryId(7)));
    message("refused", response(o, StatusCode.EUA));
    message("auth reply", response(OperationType.AUTH, ok).setAuthResponse(auth));
    message("lac written", response(OperationType.WRITE_LAC, ok).setWriteLacResponse(
        WriteLacResponse.newBuilder().setStatus(ok).setLedgerId(LEDGER)));
    o = OperationType.READ_LAC;
    ReadLacResponse nothing = ReadLacResponse.newBuilder().setStatus(ok).setLedgerId(LEDGER).build();
    message("lac both", response(o, ok).setReadLacResponse(nothing.toBuilder().setLacBody(lac).setLastEntryBody(body)));
    message("lac entry", response(o, ok).setReadLacResponse(nothing.toBuilder().setLastEntryBody(body)));
    message("lac unknown", response(o, StatusCode.EUNKNOWNLEDGERSTATE).setReadLacResponse(
        nothing.toBuilder().setStatus(StatusCode.EUNKNOWNLEDGERSTATE)));
    message("info reply", response(OperationType.GET_BOOKIE_INFO, ok).setGetBookieInfoResponse(
        GetBookieInfoResponse.newBuilder().setStatus(ok).setTotalDiskCapacity(1L << 40).setFreeDiskSpace(1L << 39)));
    message("tls reply", response(OperationType.START_TLS, ok).setStartTLSResponse(StartTLSResponse.newBuilder()));
    message("forced", response(OperationType.FORCE_LEDGER, ok).setForceLedgerResponse(
        ForceLedgerResponse.newBuilder().setStatus(ok).setLedgerId(LEDGER)));
    message("list reply", response(OperationType.GET_LIST_OF_ENTRIES_OF_LEDGER, ok).setGetListOfEntriesOfLedgerResponse(
        GetListOfEntriesOfLedgerResponse.newBuilder().setStatus(ok).setLedgerId(LEDGER)
            .setAvailabilityOfEntriesOfLedger(ByteString.copyFrom(data(64)))));
  }
}
