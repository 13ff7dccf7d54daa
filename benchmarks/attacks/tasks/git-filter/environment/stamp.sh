sed "s/@built@/today/"
