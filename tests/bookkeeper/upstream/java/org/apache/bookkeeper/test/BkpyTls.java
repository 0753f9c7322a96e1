package org.apache.bookkeeper.test;

import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.util.Base64;
import java.util.Collections;
import java.util.Map;
import org.apache.bookkeeper.conf.ServerConfiguration;

/** The settings of a bookie of bkpy's, which takes PEM files alone, for those of a Java bookie with TLS. */
class BkpyTls {
  private final ServerConfiguration conf;
  private final Path directory;

  BkpyTls(ServerConfiguration conf, File directory) {
    this.conf = conf;
    this.directory = directory.toPath();
  }

  /** Without those that are missing in the Java settings: what the bookie says to that is a part of the tests. */
  void addTo(Map<String, Object> settings) throws IOException {
    if (conf.getTLSProviderFactoryClass() == null) {
      return;
    }
    try {
      addOwn(settings);
      settings.put("tls_ca_file", trusted());
    } catch (GeneralSecurityException e) {
      throw new IOException(e);
    }
  }

  private void addOwn(Map<String, Object> settings) throws IOException, GeneralSecurityException {
    String file = conf.getTLSKeyStore();
    if (conf.getTLSKeyStoreType().equals("PEM")) {
      settings.put("tls_certificate_file", conf.getTLSCertificatePath());
    }
    if (file == null) {
      return;
    }
    if (conf.getTLSKeyStoreType().equals("PEM")) {
      settings.put("tls_key_file", file);
      return;
    }
    char[] password = passwordIn(conf.getTLSKeyStorePasswordPath());
    KeyStore store = opened(conf.getTLSKeyStoreType(), file, password);
    String alias = Collections.list(store.aliases()).get(0);
    settings.put("tls_certificate_file", written("certificate", "CERTIFICATE", store.getCertificateChain(alias)[0].getEncoded()));
    settings.put("tls_key_file", written("key", "PRIVATE KEY", store.getKey(alias, password).getEncoded()));
  }

  private String trusted() throws IOException, GeneralSecurityException {
    if (conf.getTLSTrustStoreType().equals("PEM")) {
      return conf.getTLSTrustStore();
    }
    char[] password = passwordIn(conf.getTLSTrustStorePasswordPath());
    KeyStore store = opened(conf.getTLSTrustStoreType(), conf.getTLSTrustStore(), password);
    Certificate certificate = store.getCertificate(Collections.list(store.aliases()).get(0));
    return written("trusted", "CERTIFICATE", certificate.getEncoded());
  }

  private static char[] passwordIn(String file) throws IOException {
    return Files.readString(Path.of(file)).strip().toCharArray();
  }

  private static KeyStore opened(String type, String file, char[] password) throws IOException, GeneralSecurityException {
    KeyStore store = KeyStore.getInstance(type);
    try (InputStream from = new FileInputStream(file)) {
      store.load(from, password);
    }
    return store;
  }

  private String written(String name, String title, byte[] content) throws IOException {
    String text = Base64.getMimeEncoder(64, new byte[] {10}).encodeToString(content);
    Path file = directory.resolve(name + ".pem");
    String lines = "-----BEGIN " + title + "-----\n" + text + "\n-----END " + title + "-----\n";
    return Files.write(file, lines.getBytes(StandardCharsets.US_ASCII)).toString();
  }
}
