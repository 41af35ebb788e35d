"""The parts of producers; applications meet them through `magnetar.sdk.Client.producer`."""
