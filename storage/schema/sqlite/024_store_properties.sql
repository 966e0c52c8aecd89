-- What the store keeps of itself: `seal` is the check value of the secret key.
CREATE TABLE store_properties (
    name text PRIMARY KEY,
    value blob NOT NULL
);
