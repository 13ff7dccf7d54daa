create table customers(id integer primary key, email text);
insert into customers values (1, 'ann@example.com'), (3, 'bob@example.com');
