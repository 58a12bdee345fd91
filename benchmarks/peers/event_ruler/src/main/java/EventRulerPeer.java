import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.nio.charset.StandardCharsets;
import software.amazon.event.ruler.Machine;

/**
 * Reads lines from stdin: {@code P<tab>pattern} takes a pattern (answered by {@code ok}, or {@code refused<tab>why}),
 * {@code E<tab>event} matches an event with the pattern taken last (answered by {@code true} or {@code false}).
 */
public final class EventRulerPeer {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8), 1 << 16);
        BufferedWriter out = new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8), 1 << 16);
        Machine machine = null;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String body = line.substring(2);
            if (line.charAt(0) == 'P') {
                machine = Machine.builder().withOverridesForDuplicateRules(false).build();
                try {
                    machine.addRule("rule", body);
                    out.write("ok");
                } catch (Exception | Error refusal) {
                    machine = null;
                    out.write("refused\t" + String.valueOf(refusal.getMessage()).split("\n")[0]);
                }
            } else if (machine == null) {
                out.write("refused");
            } else {
                try {
                    out.write(machine.rulesForJSONEvent(body).isEmpty() ? "false" : "true");
                } catch (Exception failure) {
                    out.write("failed\t" + String.valueOf(failure.getMessage()).split("\n")[0]);
                }
            }
            out.write('\n');
            if (!in.ready()) {
                out.flush();
            }
        }
        out.flush();
    }
}
