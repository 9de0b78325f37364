package rratelimiter.compat;

import java.io.IOException;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.cloud.gateway.filter.ratelimit.KeyResolver;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Primary;
import reactor.core.publisher.Mono;

/**
 * A gateway as a user has it: application.yml has the routes. It prints its port, and ends when its
 * standard input does.
 */
@SpringBootApplication
public class Gateway {
    @Bean
    @Primary // for routes that name none
    KeyResolver userKeyResolver() {
        return exchange -> Mono.justOrEmpty(exchange.getRequest().getHeaders().getFirst("X-User"));
    }

    @Bean
    KeyResolver queryKeyResolver() {
        return exchange -> Mono.justOrEmpty(exchange.getRequest().getQueryParams().getFirst("user"));
    }

    public static void main(String[] args) throws IOException {
        var context = SpringApplication.run(Gateway.class, args);
        System.out.println("port " + context.getEnvironment().getProperty("local.server.port"));
        System.in.read();
        Runtime.getRuntime().halt(0);
    }
}
