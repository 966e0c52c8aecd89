-- What mail hosts answered on each UTC day, and how often they refused because of us.
CREATE TABLE reputation (
    day TEXT PRIMARY KEY,  -- as in 2026-03-14
    answers INTEGER NOT NULL,
    refused INTEGER NOT NULL
);
