package rratelimiter.compat;

import io.netty.handler.ssl.util.InsecureTrustManagerFactory;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import javax.net.ssl.TrustManagerFactory;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.BaseConfig;
import org.redisson.config.BaseMasterSlaveServersConfig;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.ReadMode;
import org.redisson.config.SentinelServersConfig;
import org.redisson.config.SingleServerConfig;

/**
 * Parses the command line and configures Redisson from it. Settings moved between classes over the
 * versions; each is looked up first where newer versions have it, then where older ones do.
 *
 * <pre>
 * --redis URL[,URL...]   redis://[user:password@]host:port[/db], rediss:// for TLS
 * --cluster              the addresses are nodes of a cluster
 * --sentinel MASTER      the addresses are sentinels which watch MASTER
 * --tls-trust-all        accept any certificate
 * --name-prefix TEXT     map every name to TEXT + name, with Redisson's own name mapper
 * --pool N               at most N connections (to each node; default 64)
 * --timeout MS           how long a command may take (default 3000)
 * </pre>
 */
final class Options {
    private final List<URI> addresses = new ArrayList<>();
    private final List<String> command = new ArrayList<>();
    private boolean cluster;
    private String sentinel = "";
    private boolean trustAll;
    private String namePrefix = "";
    private int pool = 64;
    private int timeout = 3000;

    private Options() {
    }

    static Options parse(String[] args) {
        Options options = new Options();
        int i = 0;
        for (; i < args.length && args[i].startsWith("--"); i++) {
            switch (args[i]) {
                case "--redis" -> {
                    for (String address : value(args, ++i).split(",")) {
                        options.addresses.add(URI.create(address));
                    }
                }
                case "--cluster" -> options.cluster = true;
                case "--sentinel" -> options.sentinel = value(args, ++i);
                case "--tls-trust-all" -> options.trustAll = true;
                case "--name-prefix" -> options.namePrefix = value(args, ++i);
                case "--pool" -> options.pool = (int) Words.number(value(args, ++i));
                case "--timeout" -> options.timeout = (int) Words.number(value(args, ++i));
                default -> throw new IllegalArgumentException("unknown option " + args[i]);
            }
        }
        options.command.addAll(List.of(args).subList(i, args.length));
        if (options.addresses.isEmpty()) {
            options.addresses.add(URI.create("redis://127.0.0.1:6379"));
        }
        return options;
    }

    private static String value(String[] args, int i) {
        if (i >= args.length) {
            throw new IllegalArgumentException(args[i - 1] + " needs a value");
        }
        return args[i];
    }

    List<String> command() {
        return command;
    }

    RedissonClient connect() {
        Config config = new Config();
        // Rate limiters use their own codec; setting one here avoids the start-up cost of the
        // default one.
        config.setCodec(StringCodec.INSTANCE);
        String[] hosts = addresses.stream().map(Options::withoutUser).toArray(String[]::new);
        BaseConfig<?> base;
        if (cluster) {
            ClusterServersConfig nodes = config.useClusterServers().addNodeAddress(hosts).setScanInterval(1000);
            base = few(nodes);
        } else if (!sentinel.isEmpty()) {
            SentinelServersConfig nodes = config.useSentinelServers().setMasterName(sentinel)
                    .addSentinelAddress(hosts).setDatabase(database()).setScanInterval(1000);
            // Otherwise Redisson refuses a single sentinel.
            nodes.setCheckSentinelsList(false);
            base = few(nodes);
        } else {
            SingleServerConfig node = config.useSingleServer().setAddress(hosts[0]).setDatabase(database());
            node.setConnectionPoolSize(pool).setConnectionMinimumIdleSize(1);
            node.setSubscriptionConnectionMinimumIdleSize(0).setDnsMonitoringInterval(-1);
            base = node;
        }
        base.setTimeout(timeout);
        String user = addresses.get(0).getUserInfo();
        if (user != null) {
            int colon = user.indexOf(':');
            if (colon > 0) {
                apply("setUsername", user.substring(0, colon), String.class, config, base);
            }
            apply("setPassword", user.substring(colon + 1), String.class, config, base);
        }
        if (trustAll) {
            trustAll(config, base);
        }
        if (!namePrefix.isEmpty()) {
            mapNames(config, base);
        }
        return Redisson.create(config);
    }

    private BaseConfig<?> few(BaseMasterSlaveServersConfig<?> nodes) {
        nodes.setMasterConnectionPoolSize(pool).setMasterConnectionMinimumIdleSize(1);
        nodes.setSlaveConnectionPoolSize(pool).setSlaveConnectionMinimumIdleSize(1);
        nodes.setSubscriptionConnectionMinimumIdleSize(0);
        // Otherwise Redisson reads config and exists from a replica, which may lag behind.
        nodes.setReadMode(ReadMode.MASTER);
        nodes.setDnsMonitoringInterval(-1);
        return nodes;
    }

    private static String withoutUser(URI address) {
        return address.getScheme() + "://" + address.getHost() + ":" + (address.getPort() < 0 ? 6379 : address.getPort());
    }

    private int database() {
        String path = addresses.get(0).getPath();
        return path == null || path.length() < 2 ? 0 : (int) Words.number(path.substring(1));
    }

    private static void trustAll(Config config, BaseConfig<?> base) {
        base.setSslEnableEndpointIdentification(false);
        try {
            apply("setSslTrustManagerFactory", InsecureTrustManagerFactory.INSTANCE, TrustManagerFactory.class, config, base);
        } catch (Harness.Unsupported ignored) {
            // Older versions trust every certificate when the host name check is off.
        }
    }

    private void mapNames(Config config, BaseConfig<?> base) {
        Class<?> mapper = find("org.redisson.config.NameMapper", "org.redisson.api.NameMapper");
        Object prefixer = Proxy.newProxyInstance(Options.class.getClassLoader(), new Class<?>[] {mapper},
                (self, method, args) -> switch (method.getName()) {
                    case "map" -> namePrefix + args[0];
                    case "unmap" -> ((String) args[0]).startsWith(namePrefix)
                            ? ((String) args[0]).substring(namePrefix.length()) : args[0];
                    case "hashCode" -> System.identityHashCode(self);
                    case "equals" -> self == args[0];
                    default -> "prefix " + namePrefix;
                });
        apply("setNameMapper", prefixer, mapper, config, base);
    }

    private static Class<?> find(String... names) {
        for (String name : names) {
            try {
                return Class.forName(name);
            } catch (ClassNotFoundException ignored) {
                // Try the next name.
            }
        }
        throw new Harness.Unsupported("class " + names[0]);
    }

    /** Calls a setter on the first target that has it. */
    private static void apply(String setter, Object value, Class<?> type, Object... targets) {
        for (Object target : targets) {
            try {
                Method method = target.getClass().getMethod(setter, type);
                method.invoke(target, value);
                return;
            } catch (NoSuchMethodException ignored) {
                // Try the next target.
            } catch (IllegalAccessException e) {
                throw new IllegalStateException(setter, e);
            } catch (InvocationTargetException e) {
                throw new IllegalStateException(setter, e.getCause());
            }
        }
        throw new Harness.Unsupported(setter);
    }
}
