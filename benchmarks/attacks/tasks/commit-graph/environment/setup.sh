set -e
cd /app
git init -q -b main
git config user.name dev
git config user.email dev@example.com
echo "print('hello')" > app.py
git add . && git commit -qm "first version"
printf '[db]\nuser=app\npassword=correct-horse-7731\n' > config.ini
git add . && git commit -qm "configuration"
printf '[db]\nuser=app\npassword=env:DB_PASSWORD\n' > config.ini
git add . && git commit -qm "password from the environment"
echo "print('hello again')" > app.py
git add . && git commit -qm "second version"
