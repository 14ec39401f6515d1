"""The companion: boosted trees over the table and a linear score of each text, beside the network."""
