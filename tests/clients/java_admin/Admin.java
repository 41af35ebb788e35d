// The official Java admin client manages a server: `java -cp 'lib/*' Admin.java URL`.

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.common.naming.TopicDomain;
import org.apache.pulsar.common.naming.TopicVersion;
import org.apache.pulsar.common.policies.data.*;
import org.apache.pulsar.policies.data.loadbalancer.LoadManagerReport;

public class Admin {
  static final String NS = "java/admin";
  static final String TOPIC = "persistent://" + NS + "/plain";
  static final String PARTED = "persistent://" + NS + "/parted";

  static void check(boolean holds, String what) {
    if (!holds) throw new AssertionError(what);
  }

  static <T> T same(T wanted, T found) {
    check(wanted.equals(found), "wanted " + wanted + ", got " + found);
    return found;
  }

  static void refused(int status, Callable<?> call) throws Exception {
    try {
      call.call();
    } catch (PulsarAdminException error) {
      same(status, error.getStatusCode());
      return;
    }
    throw new AssertionError("not refused with " + status);
  }

  public static void main(String[] arguments) throws Exception {
    try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[0]).build()) {
      aboveTopics(admin);
      namespacePolicies(admin);
      topics(admin);
      topicPolicies(admin);
      subscriptions(admin);
      end(admin);
    }
    System.out.println("done");
  }

  static void aboveTopics(PulsarAdmin admin) throws Exception {
    check(admin.clusters().getClusters().contains("standalone"), "clusters");
    check(admin.clusters().getCluster("standalone").getServiceUrl().startsWith("http"), "cluster");
    admin.clusters().createCluster("java", ClusterData.builder().serviceUrl("http://x:1").build());
    admin.clusters().updatePeerClusterNames("java", new java.util.LinkedHashSet<>(Set.of("standalone")));
    same(Set.of("standalone"), admin.clusters().getPeerClusterNames("java"));
    admin.clusters().createFailureDomain("java", "d", FailureDomain.builder().brokers(Set.of("b:1")).build());
    same(Set.of("b:1"), admin.clusters().getFailureDomain("java", "d").getBrokers());
    check(admin.clusters().getNamespaceIsolationPolicies("java").isEmpty(), "isolation");
    admin.clusters().deleteCluster("java");
    refused(404, () -> admin.clusters().getCluster("java"));

    List<String> brokers = admin.brokers().getActiveBrokers("standalone");
    same(brokers.get(0), admin.brokers().getLeaderBroker().getBrokerId());
    admin.brokers().getOwnedNamespaces("standalone", brokers.get(0));
    check(!admin.brokers().getVersion().isEmpty(), "version");
    check(admin.brokers().getDynamicConfigurationNames().contains("ttl_s"), "dynamic names");
    admin.brokers().updateDynamicConfiguration("ttl_s", "9");
    same("9", admin.brokers().getAllDynamicConfigurations().get("ttl_s"));
    admin.brokers().deleteDynamicConfiguration("ttl_s");
    check(admin.brokers().getRuntimeConfigurations().containsKey("ttl_s"), "runtime");
    check(admin.brokers().getInternalConfigurationData().getMetadataStoreUrl() != null, "internal");
    admin.brokers().healthcheck(TopicVersion.V2);
    admin.brokers().backlogQuotaCheck();
    check(!admin.brokerStats().getMetrics().isEmpty(), "metrics");
    check(!admin.brokerStats().getMBeans().isEmpty(), "mbeans");
    admin.brokerStats().getTopics();
    LoadManagerReport report = admin.brokerStats().getLoadReport();
    check(!report.getBrokerVersionString().isEmpty(), "version of the report");
    check(report.getBundleStats() != null && report.isPersistentTopicsEnabled(), "bundles");
    check(report.getCpu().limit > 0 && report.getLastUpdate() > 0, "load");
    check(!admin.bookies().getBookies().getBookies().isEmpty(), "bookies");
    admin.bookies().updateBookieRackInfo("b:1", "default", BookieInfo.builder().rack("/r").hostname("h").build());
    same("/r", admin.bookies().getBookieRackInfo("b:1").getRack());
    admin.bookies().deleteBookieRackInfo("b:1");

    admin.tenants().createTenant("java", TenantInfo.builder().allowedClusters(Set.of("standalone")).build());
    refused(409, () -> { admin.tenants().createTenant("java", TenantInfo.builder().allowedClusters(Set.of("standalone")).build()); return null; });
    admin.tenants().updateTenant("java", TenantInfo.builder().adminRoles(Set.of("r")).allowedClusters(Set.of("standalone")).build());
    same(Set.of("r"), admin.tenants().getTenantInfo("java").getAdminRoles());
    admin.namespaces().createNamespace(NS, 4);
    same(List.of(NS), admin.namespaces().getNamespaces("java"));
    same(4, admin.namespaces().getBundles(NS).getNumBundles());
    check(admin.namespaces().getPolicies(NS).replication_clusters.contains("standalone"), "policies");
    admin.resourcegroups().createResourceGroup("java", new ResourceGroup());
    check(admin.resourcegroups().getResourceGroups().contains("java"), "resource groups");
    admin.resourcegroups().deleteResourceGroup("java");
    check(admin.resourceQuotas().getDefaultResourceQuota().getMemory() > 0, "quotas");
  }

  static void namespacePolicies(PulsarAdmin admin) throws Exception {
    var ns = admin.namespaces();
    check(ns.getRetention(NS) == null, "retention is not set");
    ns.setRetention(NS, new RetentionPolicies(10, 20));
    same(10, ns.getRetention(NS).getRetentionTimeInMinutes());
    ns.removeRetention(NS);
    ns.setNamespaceMessageTTL(NS, 60);
    same(60, ns.getNamespaceMessageTTL(NS));
    ns.setBacklogQuota(NS, BacklogQuota.builder().limitSize(1000).retentionPolicy(BacklogQuota.RetentionPolicy.producer_exception).build());
    same(1000L, ns.getBacklogQuotaMap(NS).get(BacklogQuota.BacklogQuotaType.destination_storage).getLimitSize());
    ns.removeBacklogQuota(NS);
    ns.setPersistence(NS, new PersistencePolicies(1, 1, 1, 0));
    same(1, ns.getPersistence(NS).getBookkeeperEnsemble());
    ns.setDispatchRate(NS, DispatchRate.builder().dispatchThrottlingRateInMsg(5).build());
    same(5, ns.getDispatchRate(NS).getDispatchThrottlingRateInMsg());
    ns.setPublishRate(NS, new PublishRate(5, 6));
    same(5, ns.getPublishRate(NS).publishThrottlingRateInMsg);
    ns.removePublishRate(NS);
    ns.removeDispatchRate(NS);
    ns.setSubscribeRate(NS, new SubscribeRate(5, 30));
    same(5, ns.getSubscribeRate(NS).subscribeThrottlingRatePerConsumer);
    ns.setMaxProducersPerTopic(NS, 7);
    same(7, ns.getMaxProducersPerTopic(NS));
    ns.setDeduplicationStatus(NS, true);
    same(true, ns.getDeduplicationStatus(NS));
    ns.removeDeduplicationStatus(NS);
    ns.setAutoTopicCreation(NS, AutoTopicCreationOverride.builder().allowAutoTopicCreation(true).topicType("partitioned").defaultNumPartitions(2).build());
    same(2, ns.getAutoTopicCreation(NS).getDefaultNumPartitions());
    ns.removeAutoTopicCreation(NS);
    ns.setDelayedDeliveryMessages(NS, DelayedDeliveryPolicies.builder().active(true).tickTime(5).build());
    same(5L, ns.getDelayedDelivery(NS).getTickTime());
    ns.setInactiveTopicPolicies(NS, new InactiveTopicPolicies(InactiveTopicDeleteMode.delete_when_no_subscriptions, 1000, true));
    same(1000, ns.getInactiveTopicPolicies(NS).getMaxInactiveDurationSeconds());
    ns.setCompactionThreshold(NS, 5000);
    same(5000L, ns.getCompactionThreshold(NS));
    ns.setOffloadThreshold(NS, 5000);
    same(5000L, ns.getOffloadThreshold(NS));
    ns.setSchemaCompatibilityStrategy(NS, SchemaCompatibilityStrategy.BACKWARD);
    same(SchemaCompatibilityStrategy.BACKWARD, ns.getSchemaCompatibilityStrategy(NS));
    ns.setSchemaValidationEnforced(NS, true);
    same(true, ns.getSchemaValidationEnforced(NS));
    ns.setSchemaValidationEnforced(NS, false);
    ns.setIsAllowAutoUpdateSchema(NS, true);
    same(true, ns.getIsAllowAutoUpdateSchema(NS));
    ns.setSubscriptionTypesEnabled(NS, Set.of(SubscriptionType.Shared, SubscriptionType.Exclusive));
    same(Set.of(SubscriptionType.Shared, SubscriptionType.Exclusive), ns.getSubscriptionTypesEnabled(NS));
    ns.setSubscriptionAuthMode(NS, SubscriptionAuthMode.Prefix);
    same(SubscriptionAuthMode.Prefix, ns.getSubscriptionAuthMode(NS));
    ns.setSubscriptionAuthMode(NS, SubscriptionAuthMode.None);
    ns.setNamespaceReplicationClusters(NS, Set.of("standalone"));
    same(List.of("standalone"), ns.getNamespaceReplicationClusters(NS));
    ns.setNamespaceAntiAffinityGroup(NS, "group");
    same("group", ns.getNamespaceAntiAffinityGroup(NS));
    ns.deleteNamespaceAntiAffinityGroup(NS);
    ns.setNamespaceEntryFilters(NS, new EntryFilters("a"));
    same("a", ns.getNamespaceEntryFilters(NS).getEntryFilterNames());
    ns.removeNamespaceEntryFilters(NS);
    ns.setProperty(NS, "k", "v");
    same("v", ns.getProperty(NS, "k"));
    same(Map.of("k", "v"), ns.getProperties(NS));
    same("v", ns.removeProperty(NS, "k"));
    ns.grantPermissionOnNamespace(NS, "role", Set.of(AuthAction.produce));
    same(Set.of(AuthAction.produce), ns.getPermissions(NS).get("role"));
    ns.grantPermissionOnSubscription(NS, "sub", Set.of("role"));
    ns.revokePermissionOnSubscription(NS, "sub", "role");
    ns.revokePermissionsOnNamespace(NS, "role");
    var policies = ns.getPolicies(NS);
    same(7, policies.max_producers_per_topic);
    same(5000L, policies.compaction_threshold);
  }

  static void topics(PulsarAdmin admin) throws Exception {
    var topics = admin.topics();
    topics.createNonPartitionedTopic(TOPIC, Map.of("team", "a"));
    refused(409, () -> { topics.createNonPartitionedTopic(TOPIC); return null; });
    topics.createPartitionedTopic(PARTED, 2);
    topics.updatePartitionedTopic(PARTED, 3);
    same(3, topics.getPartitionedTopicMetadata(PARTED).partitions);
    same(List.of(PARTED), topics.getPartitionedTopicList(NS));
    same(4, topics.getList(NS, TopicDomain.persistent).size());
    same(Map.of("team", "a"), topics.getProperties(TOPIC));
    topics.updateProperties(TOPIC, Map.of("tier", "1"));
    topics.removeProperties(TOPIC, "tier");
    check(admin.lookups().lookupTopic(TOPIC).startsWith("pulsar://"), "lookup");
    same(3, admin.lookups().lookupPartitionedTopic(PARTED).size());
    check(admin.lookups().getBundleRange(TOPIC).startsWith("0x"), "bundle");
    same(0L, topics.getStats(TOPIC).getMsgInCounter());
    same(-1L, topics.getStats(TOPIC).getOldestBacklogMessageAgeSeconds());
    topics.getInternalStats(TOPIC, true);
    same(3, topics.getPartitionedStats(PARTED, true).getPartitions().size());
    check(topics.getInternalStats(TOPIC).state != null, "internal stats");
    same(3, topics.getPartitionedInternalStats(PARTED).partitions.size());
    check(topics.getInternalInfo(TOPIC).contains("ledgers"), "internal info");
    check(topics.getLastMessageId(TOPIC) != null, "last message id");
    topics.unload(TOPIC);
    topics.triggerCompaction(TOPIC);
    check(topics.compactionStatus(TOPIC).status != null, "compaction");
    same(LongRunningProcessStatus.Status.NOT_RUN, topics.offloadStatus(TOPIC).getStatus());
    topics.grantPermission(TOPIC, "role", Set.of(AuthAction.consume));
    same(Set.of(AuthAction.consume), topics.getPermissions(TOPIC).get("role"));
    topics.revokePermissions(TOPIC, "role");
    topics.createNonPartitionedTopic("non-persistent://" + NS + "/np");
    admin.topics().getStats("non-persistent://" + NS + "/np");
    refused(404, () -> topics.getStats("persistent://" + NS + "/missing"));
  }

  static void topicPolicies(PulsarAdmin admin) throws Exception {
    var policies = admin.topicPolicies();
    policies.setRetention(TOPIC, new RetentionPolicies(1, 2));
    same(1, policies.getRetention(TOPIC).getRetentionTimeInMinutes());
    policies.removeRetention(TOPIC);
    policies.setMessageTTL(TOPIC, 7);
    same(7, policies.getMessageTTL(TOPIC));
    same(7, policies.getMessageTTL(TOPIC, true));
    policies.removeMessageTTL(TOPIC);
    policies.setMaxConsumers(TOPIC, 5);
    same(5, policies.getMaxConsumers(TOPIC));
    policies.setDispatchRate(TOPIC, DispatchRate.builder().dispatchThrottlingRateInMsg(5).build());
    same(5, policies.getDispatchRate(TOPIC).getDispatchThrottlingRateInMsg());
    policies.removeDispatchRate(TOPIC);
    policies.setCompactionThreshold(TOPIC, 99);
    same(99L, policies.getCompactionThreshold(TOPIC));
    policies.setSchemaCompatibilityStrategy(TOPIC, SchemaCompatibilityStrategy.FULL);
    same(SchemaCompatibilityStrategy.FULL, policies.getSchemaCompatibilityStrategy(TOPIC, false));
    policies.setDeduplicationStatus(TOPIC, false);
    same(false, policies.getDeduplicationStatus(TOPIC));
  }

  static void subscriptions(PulsarAdmin admin) throws Exception {
    var topics = admin.topics();
    for (String topic : List.of(TOPIC, PARTED)) {
      topics.createSubscription(topic, "s", MessageId.earliest);
      refused(409, () -> { topics.createSubscription(topic, "s", MessageId.latest); return null; });
      same(List.of("s"), topics.getSubscriptions(topic));
      topics.skipAllMessages(topic, "s");
      topics.resetCursor(topic, "s", 0);
      topics.expireMessages(topic, "s", 1000);
      topics.expireMessagesForAllSubscriptions(topic, 1000);
      topics.updateSubscriptionProperties(topic, "s", Map.of("a", "b"));
      same(Map.of("a", "b"), topics.getSubscriptionProperties(topic, "s"));
    }
    topics.skipMessages(TOPIC, "s", 1);
    topics.resetCursor(TOPIC, "s", MessageId.earliest);
    same(0L, topics.analyzeSubscriptionBacklog(TOPIC, "s", java.util.Optional.empty()).getEntries());
    check(topics.peekMessages(TOPIC, "s", 1).isEmpty(), "nothing to peek at");
    topics.setReplicatedSubscriptionStatus(TOPIC, "s", true);
    check(topics.getReplicatedSubscriptionStatus(TOPIC, "s").get(TOPIC), "it is replicated");
    same(0L, topics.getBacklogSizeByMessageId(TOPIC, MessageId.earliest));
    topics.deleteSubscription(TOPIC, "s");
    refused(404, () -> { topics.deleteSubscription(TOPIC, "s"); return null; });
  }

  static void end(PulsarAdmin admin) throws Exception {
    var topics = admin.topics();
    topics.truncate(TOPIC);
    topics.trimTopic(TOPIC);
    check(topics.terminateTopic(TOPIC) != null, "terminated");
    same(3, topics.terminatePartitionedTopic(PARTED).size());
    topics.delete(TOPIC);
    topics.delete("non-persistent://" + NS + "/np", true);
    topics.deletePartitionedTopic(PARTED, true);
    admin.namespaces().clearNamespaceBacklog(NS);
    admin.namespaces().unsubscribeNamespace(NS, "s");
    admin.namespaces().unload(NS);
    admin.namespaces().deleteNamespace(NS);
    admin.tenants().deleteTenant("java");
    refused(404, () -> admin.namespaces().getPolicies(NS));
  }
}
