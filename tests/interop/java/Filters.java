import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.parser.SelectorParser;

/**
 * What Apache's SQL92 filter says. Each line of the first file is an expression and a message's properties, separated
 * by tabs; the second file gets true, false, null or error for each.
 */
public class Filters {
    public static void main(String[] arguments) throws Exception {
        try (PrintStream out = new PrintStream(arguments[1], "UTF-8")) {
            for (String line : Files.readAllLines(Path.of(arguments[0]))) {
                String[] parts = line.split("\t", -1);
                Map<String, String> properties = new HashMap<>();
                for (int i = 1; i + 1 < parts.length; i += 2) {
                    properties.put(parts[i], parts[i + 1]);
                }
                out.println(verdict(parts[0], properties));
            }
        }
    }

    private static String verdict(String text, Map<String, String> properties) {
        Expression expression;
        try {
            expression = SelectorParser.parse(text);
        } catch (Throwable doesNotCompile) {
            return "error";
        }
        try {
            return String.valueOf(expression.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return new HashMap<>(properties);
                }
            }));
        } catch (Throwable givenUp) {
            return "null";  // the broker logs it and does not deliver
        }
    }
}
