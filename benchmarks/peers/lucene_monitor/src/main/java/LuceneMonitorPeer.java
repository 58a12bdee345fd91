import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.apache.lucene.analysis.core.KeywordAnalyzer;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.IntPoint;
import org.apache.lucene.document.StringField;
import org.apache.lucene.index.Term;
import org.apache.lucene.monitor.Monitor;
import org.apache.lucene.monitor.MonitorQuery;
import org.apache.lucene.monitor.MultiMatchingQueries;
import org.apache.lucene.monitor.QueryMatch;
import org.apache.lucene.monitor.TermFilteredPresearcher;
import org.apache.lucene.search.BooleanClause.Occur;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.Query;
import org.apache.lucene.search.TermQuery;

/**
 * Lucene's monitor on fieldfare's workloads: {@code LuceneMonitorPeer WORKLOAD SUBSCRIPTIONS EVENTS SECONDS}. Files and
 * output are described in ../../run.py. Events are turned into documents, 256 at a time, before the clock runs.
 */
public final class LuceneMonitorPeer {
    private static final int BATCH_EVENTS = 256;
    private static final int REGISTERED_AT_ONCE = 10_000;

    public static void main(String[] arguments) throws IOException {
        boolean isRange = arguments[0].equals("range");
        double limitS = Double.parseDouble(arguments[3]);
        try (Monitor monitor = new Monitor(new KeywordAnalyzer(), new TermFilteredPresearcher())) {
            long started = System.nanoTime();
            register(monitor, Path.of(arguments[1]), isRange);
            double buildS = (System.nanoTime() - started) / 1e9;
            List<Integer> counts = new ArrayList<>();
            double elapsedS = 0;
            List<String> lines = Files.readAllLines(Path.of(arguments[2]));
            for (int at = 0; at < lines.size() && elapsedS <= limitS; at += BATCH_EVENTS) {
                List<String> batch = lines.subList(at, Math.min(lines.size(), at + BATCH_EVENTS));
                Document[] documents = batch.stream().map(line -> document(line, isRange)).toArray(Document[]::new);
                started = System.nanoTime();
                MultiMatchingQueries<QueryMatch> found = monitor.match(documents, QueryMatch.SIMPLE_MATCHER);
                for (int i = 0; i < documents.length; i++) {
                    counts.add(found.getMatches(i).size());
                }
                elapsedS += (System.nanoTime() - started) / 1e9;
            }
            long matches = counts.stream().mapToLong(Integer::longValue).sum();
            System.out.printf(
                    "{\"build_s\": %s, \"elapsed_s\": %s, \"events\": %d, \"matches\": %d, \"counts\": %s}%n",
                    buildS, elapsedS, counts.size(), matches, counts.subList(0, Math.min(1000, counts.size())));
        }
    }

    private static void register(Monitor monitor, Path subscriptions, boolean isRange) throws IOException {
        List<MonitorQuery> waiting = new ArrayList<>();
        int id = 0;
        try (Stream<String> lines = Files.lines(subscriptions)) {
            for (String line : (Iterable<String>) lines::iterator) {
                waiting.add(new MonitorQuery(Integer.toString(id++), query(line.split("\t"), isRange)));
                if (waiting.size() == REGISTERED_AT_ONCE) {
                    monitor.register(waiting);
                    waiting.clear();
                }
            }
        }
        monitor.register(waiting);
    }

    private static Query query(String[] fields, boolean isRange) {
        BooleanQuery.Builder all = new BooleanQuery.Builder();
        for (int i = 0; i < fields.length; i += isRange ? 3 : 2) {
            all.add(
                    isRange
                            ? IntPoint.newRangeQuery(
                                    fields[i], Integer.parseInt(fields[i + 1]), Integer.parseInt(fields[i + 2]))
                            : new TermQuery(new Term(fields[i], fields[i + 1])),
                    Occur.FILTER);
        }
        return all.build();
    }

    private static Document document(String line, boolean isRange) {
        Document document = new Document();
        String[] values = line.split("\t");
        for (int a = 0; a < values.length; a++) {
            String name = String.format("a%02d", a);
            document.add(
                    isRange
                            ? new IntPoint(name, Integer.parseInt(values[a]))
                            : new StringField(name, values[a], Field.Store.NO));
        }
        return document;
    }
}
