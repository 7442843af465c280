package config

func (d *decoder) check(c *Config) {}
