#!/bin/sh
# Makes certificates for tests in the folder $1, with the tool openssl. NAME.pem and NAME.key, signed by ca.pem where nothing
# else is written here:
#   node      localhost, rendezvous.test, 127.0.0.1        next      the same, another key
#   renamed   elsewhere.test                               unnamed   localhost as common name alone
#   expired   yesterday                                    server    for servers alone
#   foreign   signed by other-ca.pem                       locked    a key with a passphrase
#   first     localhost alone; second, third  127.0.0.2, 127.0.0.3 alone
#   many      names that are too many for a message
#   chained   signed by an intermediate CA, whose certificate is in the file too
# and bundle.pem with both CAs, expired-ca.pem, empty.pem.
set -e
mkdir -p "$1"
cd "$1"
umask 077

key() {
    openssl ecparam -genkey -noout -name prime256v1 -out "$1.key"
}

ca() { # NAME
    key "$1"
    openssl req -new -x509 -key "$1.key" -subj "/CN=$1" -days 2 -out "$1.pem" -addext basicConstraints=critical,CA:true 2>&1
}

signed() { # NAME CA SUBJECT DAYS EXTENSION...
    name=$1 by=$2 subject=$3 days=$4
    shift 4
    [ -f "$name.key" ] || key "$name"
    openssl req -new -key "$name.key" -subj "$subject" -out "$name.csr" 2>&1
    : > "$name.ext"
    for extension; do echo "$extension" >> "$name.ext"; done
    openssl x509 -req -in "$name.csr" -CA "$by.pem" -CAkey "$by.key" -CAcreateserial -days "$days" -extfile "$name.ext" \
        -out "$name.pem" 2>&1
    rm "$name.csr" "$name.ext"
}

names=subjectAltName=DNS:localhost,DNS:rendezvous.test,IP:127.0.0.1
ca ca
ca other-ca
cat ca.pem other-ca.pem > bundle.pem
signed node ca /CN=node 2 $names
signed next ca /CN=next 2 $names
signed renamed ca /CN=renamed 2 subjectAltName=DNS:elsewhere.test,IP:192.0.2.1
signed first ca /CN=first 2 subjectAltName=DNS:localhost
signed second ca /CN=second 2 subjectAltName=IP:127.0.0.2
signed third ca /CN=third 2 subjectAltName=IP:127.0.0.3
signed many ca /CN=many 2 "subjectAltName=$(i=0; while [ $i -lt 40 ]; do printf 'DNS:host%s.elsewhere.test,' $i; i=$((i + 1)); done)DNS:last"
signed unnamed ca /CN=localhost 2
signed expired ca /CN=expired -1 $names
signed server ca /CN=server 2 $names extendedKeyUsage=serverAuth
signed foreign other-ca /CN=foreign 2 $names
signed middle ca /CN=middle 2 basicConstraints=critical,CA:true
signed chained middle /CN=chained 2 $names
cat middle.pem >> chained.pem
signed locked ca /CN=locked 2 $names
openssl ec -in locked.key -aes128 -passout pass:secret -out locked-again.key 2>&1
mv locked-again.key locked.key
cp ca.key expired-ca.key
signed expired-ca ca /CN=expired-ca -1 basicConstraints=critical,CA:true
: > empty.pem
