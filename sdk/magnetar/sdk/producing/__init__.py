"""Parts of producers. Applications use `magnetar.sdk.Client.producer`."""
