"""The companion: boosted trees over the table and features of the texts, beside the network."""
