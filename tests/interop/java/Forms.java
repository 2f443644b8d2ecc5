import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.rocketmq.remoting.protocol.heartbeat.ConsumeType;

/**
 * What both JSON libraries of Apache RocketMQ (fastjson 1 until 5.3, then fastjson 2) make of values: reads lines of type, tab,
 * JSON; prints for each what fastjson 1 and fastjson 2 say, with a tab between.
 */
public class Forms {
    public static class Body {
        public Long number;
        public Boolean flag;
        public String text;
        public ConsumeType name;
        public List<Integer> numbers;
        public List<String> texts;
        public Map<String, String> table;
        public Inner object;
    }

    public static class Inner {
        public String name;
    }

    interface Library {
        Body read(String json);
    }

    public static void main(String[] args) throws Exception {
        Library first = json -> com.alibaba.fastjson.JSON.parseObject(json, Body.class);
        Library second = json -> com.alibaba.fastjson2.JSON.parseObject(json, Body.class);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", 2);
            String json = "{\"" + parts[0] + "\":" + parts[1] + "}";
            System.out.println(say(first, parts[0], json) + "\t" + say(second, parts[0], json));
        }
    }

    private static String say(Library library, String type, String json) {
        try {
            Body body = library.read(json);
            return shown(type.equals("object") && body.object != null ? body.object.name
                : Body.class.getField(type).get(body));
        } catch (Exception error) {
            return "error";
        }
    }

    private static String shown(Object value) {
        if (value instanceof Collection) {
            return ((Collection<?>) value).stream().map(String::valueOf).collect(Collectors.joining(","));
        }
        if (value instanceof Map) {
            return ((Map<?, ?>) value).entrySet().stream().map(String::valueOf).collect(Collectors.joining(","));
        }
        return value == null ? "absent" : String.valueOf(value);
    }
}
