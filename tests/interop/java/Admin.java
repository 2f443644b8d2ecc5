import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** mqadmin, many commands in one process: a line of arguments with tabs between them in, what it printed as JSON out. */
public class Admin {
    private static final long LIMIT = 20_000;

    public static void main(String[] unused) throws Exception {
        PrintStream out = System.out;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String next; (next = in.readLine()) != null; ) {
            String[] arguments = next.split("\t");
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            PrintStream capture = new PrintStream(said, true, "UTF-8");
            System.setOut(capture);
            System.setErr(capture);
            Thread worker = new Thread(() -> {
                try {
                    MQAdminStartup.main0(arguments, null);
                } catch (Throwable error) {
                    error.printStackTrace();
                }
            });
            worker.setDaemon(true);
            worker.start();
            worker.join(LIMIT);
            if (worker.isAlive()) {
                capture.println("DOES NOT END");
            }
            System.setOut(out);
            out.println("{\"event\":\"said\",\"text\":\"" + escaped(said.toString("UTF-8")) + "\"}");
            out.flush();
        }
    }

    private static String escaped(String text) {
        StringBuilder out = new StringBuilder();
        for (char c : text.toCharArray()) {
            out.append(c == '"' || c == '\\' || c < 0x20 || c > 0x7e ? String.format("\\u%04x", (int) c) : String.valueOf(c));
        }
        return out.toString();
    }
}
