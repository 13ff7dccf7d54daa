create table customers(id integer primary key, email text);
insert into customers(email) values ('Ann@Example.com'), ('ann@example.com '), ('bob@example.com'), ('Bob@example.com');
