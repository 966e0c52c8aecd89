-- How many customers of the billing provider's the account has had that are no more.
ALTER TABLE accounts ADD COLUMN customer_generation INTEGER NOT NULL DEFAULT 0;
