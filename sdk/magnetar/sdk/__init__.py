"""The asyncio client of Magnetar and of Pulsar-compatible brokers, on `magnetar.sdk.wire`."""
