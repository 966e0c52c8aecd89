-- What mail hosts answered on each UTC day, and how often they refused because of us.
CREATE TABLE reputation (
    day text PRIMARY KEY,  -- as in 2026-03-14
    answers bigint NOT NULL,
    refused bigint NOT NULL
);
