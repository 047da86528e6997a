import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Callable;

/** What services in Java do with SQLite: Story LIBRARY DATABASE STEP. Prints answers and errors, one a line. */
class Story {
    static final String INSERT = "INSERT INTO t DEFAULT VALUES";
    static String database;

    static Connection connected(String name, String... settings) throws SQLException {
        Properties properties = new Properties();
        for (int nth = 0; nth < settings.length; nth += 2) properties.put(settings[nth], settings[nth + 1]);
        return DriverManager.getConnection("jdbc:sqlite:" + name, properties);
    }

    static Connection opened(String... settings) throws SQLException {
        return connected("file:" + database + "?vfs=pagekeeper", settings);
    }

    static String ask(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement(); ResultSet rows = statement.executeQuery(sql)) {
            if (!rows.next()) return "";
            List<String> columns = new ArrayList<>();
            for (int nth = 1; nth <= rows.getMetaData().getColumnCount(); nth++) columns.add(rows.getString(nth));
            return String.join("|", columns);
        }
    }

    static void run(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.executeUpdate(sql);
        }
    }

    static void said(Callable<String> answer) {
        try {
            System.out.println(answer.call());
        } catch (Exception error) {
            System.out.println(error.getMessage());
        }
    }

    static String load() throws SQLException {
        try (Connection connection = opened()) {
            run(connection, "CREATE TABLE t(a INTEGER PRIMARY KEY)");
            return ask(connection, "PRAGMA pagekeeper");
        }
    }

    static void pool() throws InterruptedException {
        List<Thread> threads = new ArrayList<>();
        for (int nth = 0; nth < 4; nth++) threads.add(new Thread(() -> {
            try (Connection connection = opened("busy_timeout", "60000")) {
                for (int commit = 0; commit < 25; commit++) run(connection, INSERT);
            } catch (SQLException error) {
                System.out.println(error.getMessage());
            }
        }));
        for (Thread thread : threads) thread.start();
        for (Thread thread : threads) thread.join();
    }

    static void hold() throws Exception {
        try (Connection connection = opened()) {
            run(connection, INSERT);
            System.out.println("ready");
            System.in.read();
            run(connection, INSERT);
        }
    }

    static void kill() throws Exception {
        Connection connection = opened();
        run(connection, INSERT);
        connection.setAutoCommit(false);
        run(connection, INSERT);
        new ProcessBuilder("kill", "-KILL", "" + ProcessHandle.current().pid()).start().waitFor();
        Thread.sleep(60000);
    }

    public static void main(String[] arguments) throws Exception {
        database = arguments[1];
        try (Connection loader = connected(":memory:", "enable_load_extension", "true")) {
            ask(loader, "SELECT load_extension('" + arguments[0] + "')");
        }
        switch (arguments[2]) {
            case "load" -> said(Story::load);
            case "literal" -> {
                said(() -> ask(connected("literal.db?vfs=pagekeeper"), "PRAGMA pagekeeper"));
                said(() -> ask(connected("file:literal.db?vfs=pagekeeper"), "PRAGMA pagekeeper"));
            }
            case "pool" -> pool();
            case "wal" -> said(() -> ask(opened("journal_mode", "WAL"), "PRAGMA journal_mode"));
            case "hold" -> hold();
            case "locked" -> said(() -> ask(opened("busy_timeout", "0"), "SELECT count(*) FROM t"));
            case "kill" -> kill();
            case "check" -> said(() -> ask(opened(), "SELECT (SELECT count(*) FROM t), integrity_check FROM pragma_integrity_check"));
            default -> throw new IllegalArgumentException(arguments[2]);
        }
    }
}
