"""A real ZooKeeper with a TLS port: Netty's server, and certificates in PEM files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from tests.hooks import java_of_zookeepers

from bkpy.local.java import find_java
from bkpy.local.process import ManagedProcess, free_port, poll
from bkpy.local.zookeeper import opens_session

if TYPE_CHECKING:
    from tests.certificates import Authority, Issued

_START_TIMEOUT_S = 100.0
_CONFIG = """\
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=60000
dataDir={data}
clientPort={plain}
clientPortAddress=127.0.0.1
secureClientPort={secure}
secureClientPortAddress=127.0.0.1
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider
ssl.keyStore.location={keystore}
ssl.keyStore.type=PEM
ssl.trustStore.location={ca}
ssl.trustStore.type=PEM
ssl.clientAuth=need
ssl.clientHostnameVerification=false
maxClientCnxns=0
admin.enableServer=false
"""


class SecureZooKeeper:
    """Asks every client at `port` for a certificate of `ca`. `plain_port` is for those who look after it."""

    def __init__(self, directory: Path, ca: Authority, own: Issued) -> None:
        directory.mkdir(parents=True)
        self.port = free_port()
        self.plain_port = free_port([self.port])
        keystore = directory / "keystore.pem"
        keystore.write_bytes(own.key.read_bytes() + own.certificate.read_bytes())
        self._config = directory / "zoo.cfg"
        self._config.write_text(
            _CONFIG.format(
                data=directory / "data", plain=self.plain_port, secure=self.port, keystore=keystore, ca=ca.file
            )
        )
        self._process = ManagedProcess(directory / "zookeeper.log")

    async def start(self) -> None:
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        jars = Path(spec.origin).parent / "jars"
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        java = str(find_java().executable)
        options, classpath = java_of_zookeepers()  # an archive fits only a class path that begins with it
        netty = map(str, sorted(jars.glob("netty-*.jar")))
        self._process.spawn([java, *options, "-cp", ":".join([classpath, *netty]), main, str(self._config)])

        async def ready_or_dead() -> bool:
            return not self._process.running or await opens_session("127.0.0.1", self.plain_port)

        assert await poll(ready_or_dead, _START_TIMEOUT_S), self._process.log_tail()
        assert self._process.running, self._process.log_tail()

    async def stop(self) -> None:
        await self._process.kill()
