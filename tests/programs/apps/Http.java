// Http.java - the JDK's HttpServer and HttpClient: Http.java server PORT | client PORT. Bodies go both ways and are compared.
// SPDX-License-Identifier: Apache-2.0
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;

public class Http {
    static final int REQUESTS = 1500;
    static final int[] SIZES = {1, 100, 1024, 16385, 100001};

    static void serve(int port) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 128);
        server.createContext("/echo", exchange -> {
            byte[] body = exchange.getRequestBody().readAllBytes();
            exchange.sendResponseHeaders(200, body.length);
            try (var out = exchange.getResponseBody()) {
                out.write(body);
            }
        });
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.start();
    }

    static void load(int port) throws Exception {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        URI uri = URI.create("http://127.0.0.1:" + port + "/echo");
        Semaphore running = new Semaphore(30);
        List<CompletableFuture<Void>> all = new ArrayList<>();
        Random random = new Random(7);
        for (int n = 0; n < REQUESTS; n++) {
            byte[] body = new byte[SIZES[n % SIZES.length]];
            random.nextBytes(body);
            int number = n;
            running.acquire();
            HttpRequest request = HttpRequest.newBuilder(uri).POST(HttpRequest.BodyPublishers.ofByteArray(body)).build();
            all.add(client.sendAsync(request, HttpResponse.BodyHandlers.ofByteArray()).whenComplete((r, e) -> running.release()).thenAccept(r -> {
                if (!Arrays.equals(r.body(), body)) throw new IllegalStateException("request " + number + ": other bytes came");
            }));
        }
        for (CompletableFuture<Void> one : all) one.get();
        System.out.println("ok " + REQUESTS);
        System.exit(0);
    }

    public static void main(String[] args) throws Exception {
        if (args[0].equals("server")) serve(Integer.parseInt(args[1]));
        else load(Integer.parseInt(args[1]));
    }
}
