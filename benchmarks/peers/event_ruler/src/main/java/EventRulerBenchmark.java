import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import software.amazon.event.ruler.Machine;

/**
 * event-ruler on fieldfare's workloads: {@code EventRulerBenchmark WORKLOAD SUBSCRIPTIONS EVENTS SECONDS}. Files and
 * output are described in ../../run.py. Events are JSON texts, which is what it takes; parsing them is timed.
 */
public final class EventRulerBenchmark {
    public static void main(String[] arguments) throws Exception {
        boolean isRange = arguments[0].equals("range");
        double limitS = Double.parseDouble(arguments[3]);
        Machine machine = Machine.builder().build();
        long started = System.nanoTime();
        register(machine, Path.of(arguments[1]), isRange);
        double buildS = (System.nanoTime() - started) / 1e9;
        List<Integer> counts = new ArrayList<>();
        long matches = 0;
        double elapsedS = 0;
        for (String line : Files.readAllLines(Path.of(arguments[2]))) {
            String event = event(line.split("\t"), isRange);
            started = System.nanoTime();
            int count = machine.rulesForJSONEvent(event).size();
            elapsedS += (System.nanoTime() - started) / 1e9;
            counts.add(count);
            matches += count;
            if (elapsedS > limitS) {
                break;
            }
        }
        System.out.printf(
                "{\"build_s\": %s, \"elapsed_s\": %s, \"events\": %d, \"matches\": %d, \"counts\": %s}%n",
                buildS, elapsedS, counts.size(), matches, counts.subList(0, Math.min(1000, counts.size())));
    }

    private static void register(Machine machine, Path subscriptions, boolean isRange) throws IOException {
        int id = 0;
        try (Stream<String> lines = Files.lines(subscriptions)) {
            for (String line : (Iterable<String>) lines::iterator) {
                machine.addRule(Integer.toString(id++), pattern(line.split("\t"), isRange));
            }
        }
    }

    private static String pattern(String[] fields, boolean isRange) {
        StringBuilder pattern = new StringBuilder("{");
        for (int i = 0; i < fields.length; i += isRange ? 3 : 2) {
            pattern.append(i == 0 ? "" : ",").append('"').append(fields[i]).append("\":[");
            if (isRange) {
                pattern.append("{\"numeric\":[\">=\",").append(fields[i + 1]).append(",\"<=\",").append(fields[i + 2]);
                pattern.append("]}]");
            } else {
                pattern.append('"').append(fields[i + 1]).append("\"]");
            }
        }
        return pattern.append('}').toString();
    }

    private static String event(String[] values, boolean isRange) {
        StringBuilder event = new StringBuilder("{");
        String quote = isRange ? "" : "\"";
        for (int a = 0; a < values.length; a++) {
            event.append(a == 0 ? "" : ",").append(String.format("\"a%02d\":", a));
            event.append(quote).append(values[a]).append(quote);
        }
        return event.append('}').toString();
    }
}
