CREATE TABLE orders (customer TEXT, amount INTEGER);
INSERT INTO orders VALUES ('ann', 5), ('bob', 3), ('ann', 7), ('bob', 4), ('eve', 9);
