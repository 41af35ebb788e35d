"""`magnetar migrate`: moves the topics of another cluster to this one."""
