/** Passwords of at least eight characters that guessers try first. */
const COMMON: ReadonlySet<string> = new Set(
  `
    00000000 0123456789 11111111 11223344 12121212 123123123 12341234 12345678 123456789
    1234567890 123456abc 123456qwerty 1234qwer 123654789 123abc123 123qweasd 147258369 1q2w3e4r
    1q2w3e4r5t 1qaz2wsx 1qazxsw2 22222222 33333333 44444444 55555555 66666666 77777777 87654321
    88888888 987654321 99999999 a1b2c3d4 aaaaaaaa abc12345 abcabcabc abcd1234 abcdefg1 abcdefgh
    admin123 admin1234 adminadmin administrator alexander amazon12 android1 angel123 anthony1
    apple123 arsenal1 asdf1234 asdfasdf asdfghjk asdfghjkl autumn2024 autumn2025 barcelona
    baseball baseball1 basketball batman123 benjamin biteme12 blessed1 blink182 buster12
    butterfly caroline changeme changeme1 changeme123 charlie1 cheese12 chelsea1 chocolate
    christopher clinic12 computer computer1 computer123 cookie12 corvette danielle december
    default1 demo1234 doctor12 dragon123 elephant elizabeth everton1 example1 facebook facebook1
    family12 february football football1 forever1 freedom1 friends1 fuckyou1 fuckyou2 gabriel1
    ginger12 goodbye1 goodluck google123 greenday guest123 hardcore health12 heaven12 hello123
    hellohello helloworld hockey12 hospital hospital1 hunter12 iloveyou iloveyou1 iloveyou2
    instagram internet iphone12 ironman1 isabella january1 jennifer jessica1 jesus123
    jesuschrist juventus killer12 letmein1 letmein123 linkedin linkinpark liverpool liverpool1
    login123 lovelove loveme12 loveyou1 madison1 manchester master12 master123 matthew1 maverick
    medicine medplum1 medplum123 mercedes metallica michael1 microsoft midnight monday12
    monkey123 mylove12 mypassword mypassword1 newpassword nicholas nintendo november nurse123
    october1 oldpassword p@ssw0rd p@ssword pass1234 pass12345 passw0rd password password1
    password12 password123 password1234 patient1 patricia pepper12 pharmacy pokemon1 princess
    princess1 q1w2e3r4 q1w2e3r4t5 qazwsxedc qweasd123 qweasdzxc qwerqwer qwerty12 qwerty123
    qwerty1234 qwertyui qwertyuiop ranger12 realmadrid root1234 samantha sample12 samsung1
    saturday secret123 secretsecret september shadow12 slipknot soccer12 spiderman spring2024
    spring2025 starwars stephanie strawberry summer12 summer2020 summer2021 summer2022
    summer2023 summer2024 summer2025 sunshine sunshine1 superman superman1 temp1234 temporary
    temppass test1234 test12345 testtest thisisapassword thursday tigger12 toor1234 tottenham
    trustno1 tuesday1 twitter1 user1234 veronica victoria welcome1 welcome12 welcome123 whatever
    whatever1 william1 windows1 winter12 winter2020 winter2021 winter2022 winter2023 winter2024
    winter2025 xxxxxxxx yourpassword youtube1 zaq12wsx zxcvbnm1 zxcvbnm123 zxcvzxcv zzzzzzzz
  `
    .trim()
    .split(/\s+/),
)

/** Capitals, and signs at the end, make no common password a good one. */
export function isCommonPassword(password: string): boolean {
  const lower = password.toLowerCase()
  return COMMON.has(lower) || COMMON.has(lower.replace(/[!.?*#$]+$/, ''))
}
