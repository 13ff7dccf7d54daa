CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT);
INSERT INTO customers (name) VALUES ('Ada Lovelace'), ('Alan Turing'), ('Grace Hopper');
PRAGMA user_version = 1;
