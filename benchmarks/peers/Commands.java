import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * Commands of the harness: a line of standard input is one, a line of JSON on standard output its answer. A command
 * that fails answers with `{"error": ...}`, and the process ends. It ends with its standard input, too.
 */
final class Commands {
    interface Client {
        String command(String[] words) throws Exception;
    }

    interface Connect {
        Client connect() throws Exception;
    }

    private Commands() {
    }

    /** Answers commands until the process ends; the first line says that the client is connected. */
    static void serve(Connect connect) throws Exception {
        BlockingQueue<String> lines = new LinkedBlockingQueue<>();
        Thread listener = new Thread(() -> listen(lines), "listener");
        listener.setDaemon(true);
        listener.start();
        Client client = connect.connect();
        System.out.println("{\"ready\": true}");
        while (true) {
            try {
                System.out.println(client.command(lines.take().trim().split(" ")));
            } catch (Throwable e) {
                System.out.println("{\"error\": \"" + String.valueOf(e).replaceAll("[\"\\\\\\n\\t]", " ") + "\"}");
                System.exit(1);
            }
        }
    }

    /** Standard input ends when the harness does, however that ends: so does this process then, in a round or not. */
    private static void listen(BlockingQueue<String> lines) {
        try (BufferedReader in = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                lines.add(line);
            }
        } catch (IOException e) {
            System.err.println(e);
        }
        Runtime.getRuntime().halt(0);
    }
}
