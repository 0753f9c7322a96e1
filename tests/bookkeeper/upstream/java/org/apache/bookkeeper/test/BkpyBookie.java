package org.apache.bookkeeper.test;

import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.withSettings;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.proto.BookieServer;
import org.apache.bookkeeper.tls.SecurityException;

/** A process that is a bookie of bkpy's. The Python program that starts the tests starts it, and kills it with this connection. */
class BkpyBookie {
  private static final int LAUNCHER = Integer.getInteger("bkpy.launcher");

  private final ServerConfiguration conf;
  private final BookieId id;
  private final BookieSocketAddress address;
  private final BookieServer handle;
  private Socket connection;
  private BufferedReader answers;

  BkpyBookie(ServerConfiguration conf) throws Exception {
    this.conf = conf;
    address = new BookieSocketAddress(InetAddress.getLoopbackAddress().getHostAddress(), conf.getBookiePort());
    id = conf.getBookieId() == null ? address.toBookieId() : BookieId.parse(conf.getBookieId());
    handle = mock(BookieServer.class, withSettings().stubOnly().defaultAnswer(call -> answerAsServer(call.getMethod().getName())));
  }

  BookieId id() {
    return id;
  }

  BookieSocketAddress address() {
    return address;
  }

  /** What tests know of a server, which is none: only the calls below do anything, and any other fails. */
  BookieServer handle() {
    return handle;
  }

  /** One that stays free while its bookie is down. */
  static int freePort() throws IOException {
    try (Socket connection = new Socket(InetAddress.getLoopbackAddress(), LAUNCHER)) {
      return Integer.parseInt(ask(connection, reader(connection), "port"));
    }
  }

  private Object answerAsServer(String method) throws Exception {
    switch (method) {
      case "getBookieId":
        return id;
      case "getLocalAddress":
        return address;
      case "isRunning":
        return connection != null;
      case "suspendProcessing":
        ask("suspend");
        return null;
      case "resumeProcessing":
        ask("resume");
        return null;
      case "shutdown":
        stop();
        return null;
      case "toString":
        return "bkpy's bookie " + id;
      default:
        throw new UnsupportedOperationException("a bookie of bkpy's has no Java method " + method);
    }
  }

  /** Returns when it accepts connections. */
  synchronized void start() throws Exception {
    if (conf.getBookieAuthProviderFactoryClass() != null || conf.isEnableLocalTransport()) {
      throw new UnsupportedOperationException("a bookie of bkpy's is in another process, and runs no plugin in Java");
    }
    Map<String, Object> settings = new HashMap<>(Map.of(
        "bookie_id", id.toString(),
        "listen", address.toString(),
        "metadata_uri", conf.getMetadataServiceUri(),
        "journal_directories", paths("journal", conf.getJournalDirs()),
        "ledger_directories", paths("ledgers", conf.getLedgerDirs())));
    new BkpyTls(conf, conf.getJournalDirs()[0]).addTo(settings);
    connection = new Socket(InetAddress.getLoopbackAddress(), LAUNCHER);
    answers = reader(connection);
    try {
      ask(new ObjectMapper().writeValueAsString(settings));
    } catch (IOException e) {
      if (e.getMessage().contains("tls_key_file")) {  // as one of Java's says that it can't have TLS with its settings
        throw new SecurityException(e.getMessage(), e);
      }
      throw e;
    }
  }

  /** A clean stop: the registration is gone after it. */
  synchronized void stop() throws IOException {
    if (connection == null) {
      return;
    }
    try {
      ask("stop");
    } finally {
      connection.close();
      connection = null;
    }
  }

  /** SIGSTOP and SIGCONT, `read-only`, or `reads`, which answers with the number of read requests so far. */
  synchronized String ask(String request) throws IOException {
    return ask(connection, answers, request);
  }

  private static BufferedReader reader(Socket connection) throws IOException {
    return new BufferedReader(new InputStreamReader(connection.getInputStream(), StandardCharsets.UTF_8));
  }

  private static String ask(Socket connection, BufferedReader answers, String request) throws IOException {
    connection.getOutputStream().write((request + "\n").getBytes(StandardCharsets.UTF_8));
    String answer = answers.readLine();
    if (answer == null || !answer.startsWith("ok")) {
      throw new IOException(request + ": " + answer);
    }
    return answer.substring(2).strip();
  }

  private static List<String> paths(String name, File[] directories) {
    return Arrays.stream(directories).map(directory -> new File(directory, name).getPath()).toList();
  }
}
