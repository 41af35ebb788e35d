// The official Go admin client manages a server. Ends with 0 if all of it was right.
package main

import (
	"fmt"
	"os"

	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin/config"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func expect(is bool, what string) {
	if !is {
		panic("not as expected: " + what)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func aboveTopics(admin pulsaradmin.Client) {
	expect(len(must(admin.Clusters().List())) > 0, "clusters")
	check(admin.Clusters().Create(utils.ClusterData{Name: "go", ServiceURL: "http://x:1"}))
	check(admin.Clusters().UpdatePeerClusters("go", []string{"standalone"}))
	expect(len(must(admin.Clusters().GetPeerClusters("go"))) == 1, "peers")
	domain := utils.FailureDomainData{ClusterName: "go", DomainName: "d", BrokerList: []string{"b:1"}}
	check(admin.Clusters().CreateFailureDomain(domain))
	expect(len(must(admin.Clusters().ListFailureDomains("go"))) == 1, "failure domains")
	check(admin.Clusters().Delete("go"))

	brokers := must(admin.Brokers().GetActiveBrokers("standalone"))
	expect(must(admin.Brokers().GetLeaderBroker()).BrokerID == brokers[0], "leader")
	must(admin.Brokers().GetOwnedNamespaces("standalone", brokers[0]))
	expect(len(must(admin.Brokers().GetDynamicConfigurationNames())) > 10, "dynamic names")
	check(admin.Brokers().UpdateDynamicConfiguration("ttl_s", "9"))
	expect(must(admin.Brokers().GetAllDynamicConfigurations())["ttl_s"] == "9", "dynamic value")
	check(admin.Brokers().DeleteDynamicConfiguration("ttl_s"))
	must(admin.Brokers().GetRuntimeConfigurations())
	must(admin.Brokers().GetInternalConfigurationData())
	check(admin.Brokers().HealthCheck())
	expect(len(must(admin.BrokerStats().GetMetrics())) > 0, "metrics")
	must(admin.BrokerStats().GetTopics())
	must(admin.BrokerStats().GetLoadReport())
	must(admin.ResourceQuotas().GetDefaultResourceQuota())

	tenant := utils.TenantData{Name: "go", AllowedClusters: []string{"standalone"}}
	check(admin.Tenants().Create(tenant))
	expect(admin.Tenants().Create(tenant) != nil, "a tenant is created once")
	tenant.AdminRoles = []string{"r"}
	check(admin.Tenants().Update(tenant))
	expect(must(admin.Tenants().Get("go")).AdminRoles[0] == "r", "roles")
	check(admin.Namespaces().CreateNsWithNumBundles("go/admin", 4))
	expect(must(admin.Namespaces().GetNamespaces("go"))[0] == "go/admin", "namespaces")
}

func policies(admin pulsaradmin.Client) {
	ns, name := admin.Namespaces(), "go/admin"
	full := must(utils.GetNamespaceName(name))
	must(ns.GetPolicies(name))
	must(ns.GetNamespaceMessageTTL(name))
	check(ns.SetNamespaceMessageTTL(name, 60))
	expect(must(ns.GetNamespaceMessageTTL(name)) == 60, "ttl")
	check(ns.SetRetention(name, utils.NewRetentionPolicies(10, 20)))
	expect(must(ns.GetRetention(name)).RetentionTimeInMinutes == 10, "retention")
	check(ns.RemoveRetention(name))
	check(ns.SetMaxProducersPerTopic(*full, 7))
	expect(must(ns.GetMaxProducersPerTopic(*full)) == 7, "producers")
	check(ns.SetSchemaCompatibilityStrategy(*full, utils.SchemaCompatibilityStrategyBackward))
	expect(must(ns.GetSchemaCompatibilityStrategy(*full)) == utils.SchemaCompatibilityStrategyBackward, "schemas")
	must(ns.GetOffloadThreshold(*full))
	check(ns.SetOffloadDeleteLag(*full, 1000))
	expect(must(ns.GetOffloadDeleteLag(*full)) == 1000, "lag")
	check(ns.ClearOffloadDeleteLag(*full))
	check(ns.SetCompactionThreshold(*full, 5000))
	expect(must(ns.GetCompactionThreshold(*full)) == 5000, "compaction")
	check(ns.SetNamespaceAntiAffinityGroup(name, "group"))
	expect(must(ns.GetNamespaceAntiAffinityGroup(name)) == "group", "anti-affinity")
	check(ns.DeleteNamespaceAntiAffinityGroup(name))
	check(ns.SetPersistence(name, utils.NewPersistencePolicies(1, 1, 1, 0)))
	expect(must(ns.GetPersistence(name)).BookkeeperEnsemble == 1, "persistence")
	check(ns.SetDispatchRate(*full, utils.DispatchRate{DispatchThrottlingRateInMsg: 5, RatePeriodInSecond: 1}))
	expect(must(ns.GetDispatchRate(*full)).DispatchThrottlingRateInMsg == 5, "dispatch rate")
	check(ns.GrantNamespacePermission(*full, "role", []utils.AuthAction{"produce"}))
	expect(len(must(ns.GetNamespacePermissions(*full))["role"]) == 1, "permissions")
	check(ns.GrantSubPermission(*full, "sub", []string{"role"}))
	must(ns.GetSubPermissions(*full))
	check(ns.RevokeSubPermission(*full, "sub", "role"))
	check(ns.RevokeNamespacePermission(*full, "role"))
	check(ns.SetSubscriptionAuthMode(*full, utils.Prefix))
	check(ns.UpdateProperties(*full, map[string]string{"a": "b"}))
	expect(must(ns.GetProperties(*full))["a"] == "b", "properties")
	check(ns.RemoveProperties(*full))
	check(ns.Unload(name))
}

func topics(admin pulsaradmin.Client) {
	topics := admin.Topics()
	plain := *must(utils.GetTopicName("persistent://go/admin/plain"))
	parted := *must(utils.GetTopicName("persistent://go/admin/parted"))
	check(topics.Create(plain, 0))
	expect(topics.Create(plain, 0) != nil, "a topic is created once")
	check(topics.Create(parted, 2))
	check(topics.Update(parted, 3))
	expect(must(topics.GetMetadata(parted)).Partitions == 3, "partitions")
	partitioned, all, err := topics.List(*must(utils.GetNamespaceName("go/admin")))
	check(err)
	expect(len(partitioned) == 1 && len(all) == 4, fmt.Sprint(partitioned, all))
	check(topics.UpdateProperties(plain, map[string]string{"a": "b"}))
	expect(must(topics.GetProperties(plain))["a"] == "b", "properties")
	expect(must(topics.Lookup(plain)).BrokerURL != "", "lookup")
	must(topics.GetBundleRange(plain))
	must(topics.GetLastMessageID(plain))
	must(topics.GetMessageID(plain, 0))
	must(topics.GetStats(plain))
	must(topics.GetInternalStats(plain))
	must(topics.GetInternalInfo(plain))
	expect(len(must(topics.GetPartitionedStats(parted, true)).Partitions) == 3, "partitioned stats")
	check(topics.Compact(plain))
	must(topics.CompactStatus(plain))
	must(topics.OffloadStatus(plain))
	check(topics.Unload(plain))
	check(topics.SetMessageTTL(plain, 7))
	expect(must(topics.GetMessageTTL(plain)) == 7, "ttl")
	check(topics.SetMaxConsumers(plain, 8))
	expect(must(topics.GetMaxConsumers(plain)) == 8, "consumers")
	check(topics.SetReplicationClusters(plain, []string{"standalone"}))
	expect(len(must(topics.GetReplicationClusters(plain))) == 1, "replication")
	check(topics.SetSchemaValidationEnforced(plain, false))
	must(topics.GetSchemaValidationEnforced(plain))
	check(topics.GrantPermission(plain, "role", []utils.AuthAction{"consume"}))
	expect(len(must(topics.GetPermissions(plain))["role"]) == 1, "permissions")
	check(topics.RevokePermission(plain, "role"))

	subscriptions := admin.Subscriptions()
	for _, topic := range []utils.TopicName{plain, parted} {
		check(subscriptions.Create(topic, "s", utils.Earliest))
		expect(must(subscriptions.List(topic))[0] == "s", "subscriptions")
		check(subscriptions.ClearBacklog(topic, "s"))
		check(subscriptions.ResetCursorToTimestamp(topic, "s", 1))
		check(subscriptions.ExpireMessages(topic, "s", 1000))
		check(subscriptions.ExpireAllMessages(topic, 1000))
	}
	check(subscriptions.SkipMessages(plain, "s", 1))
	check(subscriptions.ResetCursorToMessageID(plain, "s", utils.Earliest))
	check(subscriptions.Delete(plain, "s"))
	expect(subscriptions.Delete(plain, "s") != nil, "a subscription is deleted once")
	must(topics.Terminate(plain))
	check(topics.Delete(plain, false, true))
	check(topics.Delete(parted, true, false))
	check(admin.Namespaces().ClearNamespaceBacklog(*must(utils.GetNamespaceName("go/admin"))))
	check(admin.Namespaces().DeleteNamespace("go/admin"))
	check(admin.Tenants().Delete("go"))
}

func main() {
	admin := must(pulsaradmin.NewClient(&config.Config{WebServiceURL: os.Args[1]}))
	aboveTopics(admin)
	policies(admin)
	topics(admin)
	fmt.Println("done")
}
