package org.apache.bookkeeper.test;

import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedList;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.apache.bookkeeper.bookie.Bookie;
import org.apache.bookkeeper.client.BookKeeperTestClient;
import org.apache.bookkeeper.common.allocator.PoolingPolicy;
import org.apache.bookkeeper.conf.AbstractConfiguration;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.conf.TestBKConfiguration;
import org.apache.bookkeeper.meta.zk.ZKMetadataDriverBase;
import org.apache.bookkeeper.metastore.InMemoryMetaStore;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.proto.BookieServer;
import org.apache.bookkeeper.replication.Auditor;
import org.apache.bookkeeper.replication.AutoRecoveryMain;
import org.apache.bookkeeper.replication.ReplicationWorker;
import org.apache.bookkeeper.stats.OpStatsLogger;
import org.apache.bookkeeper.stats.ThreadRegistry;
import org.apache.zookeeper.ZooKeeper;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.rules.TestName;
import org.junit.rules.Timeout;

/**
 * A cluster for Apache BookKeeper's own tests: a ZooKeeper in this process, and bookies of bkpy's.
 *
 * <p>It takes the place of BookKeeper's class of this name, whose public and protected members it has.
 */
public abstract class BookKeeperClusterTestCase {
  private static final long READY_S = 120;
  private static final int TIMEOUT_S = 600;  // only what never happens takes so long, also on a busy machine
  private static final String READS = "bookkeeper_server.READ_ENTRY_SCHEDULING_DELAY";

  @Rule public final TestName runtime = new TestName();
  @Rule public final Timeout globalTimeout;

  protected final ZooKeeperCluster zkUtil;
  protected ZooKeeper zkc;
  protected String metadataServiceUri;
  protected final TmpDirs tmpDirs = new TmpDirs();
  protected final List<ServerTester> servers = new LinkedList<>();
  protected int numBookies;
  protected BookKeeperTestClient bkc;
  protected boolean useUUIDasBookieId = true;
  protected final ServerConfiguration baseConf = TestBKConfiguration.newServerConfiguration();
  protected final ClientConfiguration baseClientConf = TestBKConfiguration.newClientConfiguration();
  private boolean autoRecovery;
  private volatile Throwable captured;

  public BookKeeperClusterTestCase(int numBookies) {
    this(numBookies, 120);
  }

  public BookKeeperClusterTestCase(int numBookies, int testTimeoutSecs) {
    this(numBookies, 1, testTimeoutSecs);
  }

  public BookKeeperClusterTestCase(int numBookies, int numOfZKNodes, int testTimeoutSecs) {
    this.numBookies = numBookies;
    globalTimeout = Timeout.seconds(Math.max(testTimeoutSecs, TIMEOUT_S));
    try {
      zkUtil = numOfZKNodes == 1 ? new ZooKeeperUtil() : new ZooKeeperClusterUtil(numOfZKNodes);
    } catch (Exception e) {
      throw new IllegalStateException(e);
    }
  }

  // --- start and end ---

  @Before
  public void setUp() throws Exception {
    setUp("/ledgers");
  }

  protected void setUp(String ledgersRootPath) throws Exception {
    InMemoryMetaStore.reset();
    setMetastoreImplClass(baseConf);
    setMetastoreImplClass(baseClientConf);
    startZKCluster();
    metadataServiceUri = getMetadataServiceUri(ledgersRootPath);
    startBKCluster(metadataServiceUri);
  }

  @After
  public void tearDown() throws Exception {
    try {
      stopBKCluster();
    } finally {
      stopZKCluster();
      tmpDirs.cleanup();
    }
    if (captured != null) {
      throw new AssertionError("in another thread", captured);
    }
  }

  @After
  public void clearMetricsThreadRegistry() throws Exception {
    ThreadRegistry.clear();
  }

  protected void captureThrowable(Runnable work) {
    try {
      work.run();
    } catch (Throwable e) {
      captured = e;
    }
  }

  protected void startZKCluster() throws Exception {
    zkUtil.startCluster();
    zkc = zkUtil.getZooKeeperClient();
  }

  protected void stopZKCluster() throws Exception {
    zkUtil.killCluster();
  }

  protected void startBKCluster(String metadataServiceUri) throws Exception {
    baseConf.setMetadataServiceUri(metadataServiceUri);
    baseClientConf.setMetadataServiceUri(metadataServiceUri);
    baseClientConf.setAllocatorPoolingPolicy(PoolingPolicy.UnpooledHeap);
    List<ServerConfiguration> confs = new ArrayList<>();
    for (int i = 0; i < numBookies; i++) {
      confs.add(newServerConfiguration());
    }
    bkc = null;  // that of a cluster before this one is closed
    startAndAddBookies(confs);
  }

  protected void stopBKCluster() throws Exception {
    if (bkc != null) {
      bkc.close();
    }
    stopServers();
  }

  protected void stopAllBookies() throws Exception {
    stopAllBookies(true);
  }

  protected void stopAllBookies(boolean shutdownClient) throws Exception {
    stopServers();
    if (shutdownClient && bkc != null) {
      bkc.close();
      bkc = null;
    }
  }

  // --- settings ---

  protected String getMetadataServiceUri(String ledgersRootPath) {
    return zkUtil.getMetadataServiceUri(ledgersRootPath);
  }

  protected String newMetadataServiceUri(String ledgersRootPath) {
    return zkUtil.getMetadataServiceUri(ledgersRootPath);
  }

  protected String newMetadataServiceUri(String ledgersRootPath, String type) {
    return zkUtil.getMetadataServiceUri(ledgersRootPath, type);
  }

  public void setMetastoreImplClass(AbstractConfiguration<?> conf) {
    conf.setMetastoreImplClass(InMemoryMetaStore.class.getName());
  }

  protected ServerConfiguration newServerConfiguration() throws Exception {
    File directory = tmpDirs.createNew("bookie", "test");
    return newServerConfiguration(BkpyBookie.freePort(), directory, new File[] {directory});
  }

  protected ServerConfiguration newServerConfiguration(int port, File journalDir, File[] ledgerDirs) {
    ServerConfiguration conf = new ServerConfiguration(baseConf);
    conf.setBookiePort(port);
    conf.setJournalDirName(journalDir.getPath());
    conf.setLedgerDirNames(Arrays.stream(ledgerDirs).map(File::getPath).toArray(String[]::new));
    return conf;
  }

  protected ClientConfiguration newClientConfiguration() {
    return new ClientConfiguration(baseClientConf);
  }

  // --- which bookies there are ---

  public BookieId getBookie(int index) throws Exception {
    return servers.get(index).bookie.id();
  }

  protected BookieId addressByIndex(int index) throws Exception {
    return getBookie(index);
  }

  protected List<BookieId> bookieAddresses() throws Exception {
    return servers.stream().map(server -> server.bookie.id()).toList();
  }

  protected BookieServer serverByIndex(int index) throws Exception {
    return servers.get(index).getServer();
  }

  protected ServerConfiguration confByIndex(int index) throws Exception {
    return servers.get(index).conf;
  }

  public ServerConfiguration getBkConf(BookieId id) throws Exception {
    return withId(id).conf;
  }

  protected int indexOfServer(BookieServer handle) throws Exception {
    for (ServerTester server : servers) {
      if (server.getServer() == handle) {
        return servers.indexOf(server);
      }
    }
    return -1;
  }

  protected int lastBookieIndex() {
    return servers.size() - 1;
  }

  protected int bookieCount() {
    return servers.size();
  }

  protected List<File> bookieLedgerDirs() throws Exception {
    return servers.stream().flatMap(server -> Arrays.stream(server.conf.getLedgerDirs())).toList();
  }

  protected List<File> bookieJournalDirs() throws Exception {
    return servers.stream().flatMap(server -> Arrays.stream(server.conf.getJournalDirs())).toList();
  }

  public boolean isCreatedFromIp(BookieId id) {
    return bkc.getBookieAddressResolver().resolve(id).getSocketAddress().toString().startsWith("/");
  }

  private ServerTester withId(BookieId id) {
    return servers.stream().filter(server -> server.bookie.id().equals(id)).findFirst().orElseThrow();
  }

  // --- what happens to bookies ---

  public int startNewBookie() throws Exception {
    return startNewBookieAndReturnAddress().getPort();
  }

  public BookieSocketAddress startNewBookieAndReturnAddress() throws Exception {
    return startAndAddBookie(newServerConfiguration()).getAddress();
  }

  public BookieId startNewBookieAndReturnBookieId() throws Exception {
    return startAndAddBookie(newServerConfiguration()).bookie.id();
  }

  protected ServerTester startAndAddBookie(ServerConfiguration conf) throws Exception {
    ServerTester server = startBookie(conf);
    servers.add(server);
    return server;
  }

  protected ServerTester startAndAddBookie(ServerConfiguration conf, Bookie bookie) throws Exception {
    return startBookie(conf, bookie);
  }

  protected ServerTester startBookie(ServerConfiguration conf, Bookie bookie) throws Exception {
    throw new UnsupportedOperationException("a bookie of bkpy's runs no Java");
  }

  protected ServerTester startBookie(ServerConfiguration conf) throws Exception {
    openClient();
    ServerTester server = new ServerTester(conf);
    server.bookie.start();
    becomeReady(server);
    return server;
  }

  private void startAndAddBookies(List<ServerConfiguration> confs) throws Exception {
    if (confs.isEmpty()) {
      return;
    }
    openClient();
    List<ServerTester> started = new ArrayList<>();
    for (ServerConfiguration conf : confs) {
      started.add(new ServerTester(conf));
    }
    servers.addAll(started);
    concurrently(started, server -> {
      server.bookie.start();
      return null;
    });
    for (ServerTester server : started) {
      becomeReady(server);
    }
  }

  private void becomeReady(ServerTester server) throws Exception {
    bkc.waitForWritableBookie(server.bookie.id()).get(READY_S, TimeUnit.SECONDS);
    if (server.conf.isForceReadOnlyBookie()) {
      becomeReadOnly(server);
    }
    if (autoRecovery) {
      server.startAutoRecovery();
    }
  }

  private void becomeReadOnly(ServerTester server) throws Exception {
    server.bookie.ask("read-only");
    bkc.waitForReadOnlyBookie(server.bookie.id()).get(READY_S, TimeUnit.SECONDS);
  }

  /** The first client writes the LAYOUT of a new cluster. */
  private void openClient() throws Exception {
    if (bkc == null) {
      bkc = new BookKeeperTestClient(baseClientConf, new TestStatsProvider());
    }
  }

  public ServerConfiguration killBookie(BookieId id) throws Exception {
    ServerTester server = servers.stream().filter(each -> each.bookie.id().equals(id)).findFirst().orElse(null);
    return server == null ? null : killBookie(servers.indexOf(server));
  }

  public ServerConfiguration killBookie(int index) throws Exception {
    ServerTester server = servers.remove(index);
    server.shutdown();
    return server.conf;
  }

  public ServerConfiguration killBookieAndWaitForZK(int index) throws Exception {
    BookieId id = getBookie(index);
    ServerConfiguration conf = killBookie(index);
    for (String kind : List.of("/available/", "/available/readonly/")) {
      while (zkc.exists(ZKMetadataDriverBase.resolveZkLedgersRootPath(baseConf) + kind + id, false) != null) {
        Thread.sleep(50);
      }
    }
    return conf;
  }

  public void restartBookie(BookieId id) throws Exception {
    startAndAddBookie(killBookie(id));
  }

  public void restartBookies() throws Exception {
    restartBookies(Function.identity());
  }

  public void restartBookies(Function<ServerConfiguration, ServerConfiguration> reconfigure) throws Exception {
    List<ServerConfiguration> confs = new ArrayList<>();
    for (ServerTester server : servers) {
      confs.add(server.conf);
    }
    stopServers();
    startAndAddBookies(confs.stream().map(reconfigure).toList());
  }

  public void setBookieToReadOnly(BookieId id) throws Exception {
    becomeReadOnly(withId(id));
  }

  /** Returns when it has fallen asleep, as the latch then says. */
  public CountDownLatch sleepBookie(BookieId id, int seconds) throws Exception {
    ServerTester server = sleeping(id);
    wake(server, () -> {
      TimeUnit.SECONDS.sleep(seconds);
      return null;
    });
    return new CountDownLatch(0);
  }

  public void sleepBookie(BookieId id, CountDownLatch until) throws InterruptedException, IOException {
    sleepBookie(id, until, null);
  }

  public void sleepBookie(BookieId id, CountDownLatch until, CountDownLatch asleep) throws InterruptedException, IOException {
    ServerTester server = sleeping(id);
    if (asleep != null) {
      asleep.countDown();
    }
    wake(server, () -> {
      until.await();
      return null;
    });
  }

  private ServerTester sleeping(BookieId id) throws IOException {
    try {
      ServerTester server = withId(id);
      server.bookie.ask("suspend");
      return server;
    } catch (NoSuchElementException e) {
      throw new IOException("there is no bookie " + id);
    }
  }

  /** Let it go on after the wait, if nobody has stopped it meanwhile. */
  private void wake(ServerTester server, Callable<Void> wait) {
    Thread thread = new Thread(() -> {
      try {
        wait.call();
        if (server.bookie.handle().isRunning()) {
          server.bookie.ask("resume");
        }
      } catch (Exception e) {
        captured = e;
      }
    });
    thread.setDaemon(true);
    thread.start();
  }

  private void stopServers() throws Exception {
    List<ServerTester> stopped = new ArrayList<>(servers);
    servers.clear();
    concurrently(stopped, server -> {
      server.shutdown();
      return null;
    });
  }

  private interface Work {
    Void on(ServerTester server) throws Exception;
  }

  private static void concurrently(List<ServerTester> servers, Work work) throws Exception {
    ExecutorService threads = Executors.newCachedThreadPool();
    List<Future<Void>> futures = new ArrayList<>();
    for (ServerTester server : servers) {
      futures.add(threads.submit(() -> work.on(server)));
    }
    threads.shutdown();
    for (Future<Void> future : futures) {
      future.get();
    }
  }

  // --- BookKeeper's own repair, which runs in this process ---

  public void setAutoRecoveryEnabled(boolean enabled) {
    autoRecovery = enabled;
  }

  public boolean isAutoRecoveryEnabled() {
    return autoRecovery;
  }

  public void startReplicationService() throws Exception {
    for (ServerTester server : servers) {
      server.startAutoRecovery();
    }
  }

  public void stopReplicationService() throws Exception {
    for (ServerTester server : servers) {
      server.stopAutoRecovery();
    }
  }

  public Auditor getAuditor(int timeout, TimeUnit unit) throws Exception {
    long end = System.nanoTime() + unit.toNanos(timeout);
    while (System.nanoTime() < end) {
      for (ServerTester server : servers) {
        Auditor auditor = server.getAuditor();
        if (auditor != null && auditor.isRunning() && server.getReplicationWorker().isRunning()) {
          return auditor;
        }
      }
      Thread.sleep(50);
    }
    throw new IllegalStateException("no auditor runs");
  }

  // --- what bookies count ---

  public void resetBookieOpLoggers() {
    throw new UnsupportedOperationException("a process goes on counting");
  }

  public TestStatsProvider getStatsProvider(BookieId id) {
    return withId(id).getStatsProvider();
  }

  public TestStatsProvider getStatsProvider(int index) throws Exception {
    return servers.get(index).getStatsProvider();
  }

  /** One bookie, with the replication of BookKeeper's own that belongs to it. */
  public class ServerTester {
    private final ServerConfiguration conf;
    private final BkpyBookie bookie;
    private AutoRecoveryMain replication;

    public ServerTester(ServerConfiguration conf) throws Exception {
      this.conf = conf;
      bookie = new BkpyBookie(conf);
    }

    public ServerConfiguration getConfiguration() {
      return conf;
    }

    public BookieServer getServer() {
      return bookie.handle();
    }

    public BookieSocketAddress getAddress() {
      return bookie.address();
    }

    /** With the number of reads, the only count that a test asks for. */
    public TestStatsProvider getStatsProvider() {
      try {
        TestStatsProvider counts = new TestStatsProvider();
        OpStatsLogger reads = counts.getStatsLogger("").getOpStatsLogger(READS);
        for (int left = Integer.parseInt(bookie.ask("reads")); left > 0; left--) {
          reads.registerSuccessfulValue(0);
        }
        return counts;
      } catch (IOException e) {
        throw new IllegalStateException(e);
      }
    }

    public void startAutoRecovery() throws Exception {
      replication = new AutoRecoveryMain(conf);
      replication.start();
    }

    public void stopAutoRecovery() {
      if (replication != null) {
        replication.shutdown();
      }
    }

    public Auditor getAuditor() {
      return replication == null ? null : replication.getAuditor();
    }

    public ReplicationWorker getReplicationWorker() {
      return replication == null ? null : replication.getReplicationWorker();
    }

    public void shutdown() throws Exception {
      stopAutoRecovery();
      bookie.stop();
    }
  }
}
