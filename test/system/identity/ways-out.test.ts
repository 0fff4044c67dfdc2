/** Links and messages of sign-in pages that cannot continue. */
import t from 'tap'
import { createAccounts } from '../../fixtures/accounts.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { exitWithoutChromium, openPage } from '../../fixtures/http/chromium.ts'
import { anEmail, invite, mailsTo } from '../../fixtures/invites.ts'
import { aPerson, PASSWORD } from '../../fixtures/people.ts'

exitWithoutChromium(t)
const botica = await openBotica(t)
const { services, baseUrl, project, admin, anonymous } = botica
const page = await openPage(t)

const follow = (text: string, on = page) =>
  on.act(
    `[...document.querySelectorAll('a')].find((one) => one.textContent === '${text}')`,
    'found.click()',
  )

t.test('a sign-in that ends after wrong codes can start again', async (t) => {
  const { email } = await aPerson(services, project, { mfaRequired: true })
  await page.goto(`${baseUrl}signin`)
  await page.type('email', email)
  await page.type('password', PASSWORD)
  await page.press('button')
  for (let attempt = 1; attempt <= 5; attempt++) {
    await page.shows(`document.querySelector('button[type=submit]:not([disabled])')`)
    await page.type('token', '000000')
    await page.press('button[type=submit]')
    await page.shows(`document.getElementById('problem').textContent === 'Invalid token'`)
  }
  await page.press('button[type=submit]')
  await page.shows(`document.getElementById('problem').textContent === 'Login revoked'`)
  await follow('Start again')
  await page.shows(`document.getElementById('email')`)
  t.equal(await page.value('location.pathname'), '/signin')
})

t.test('a password that was set by a link leads to the sign-in', async (t) => {
  const { email } = await aPerson(services, project)
  await anonymous.post('/auth/resetpassword', { email })
  await until(async () => (await mailsTo(services, email)).length > 0, 60_000)
  const { id, secret } = await createAccounts(botica).link(email, 'setpassword')
  await page.goto(`${baseUrl}setpassword/${id}/${secret}`)
  await page.type('password', 'a long new password')
  await page.type('again', 'a long new password')
  await page.press('button')
  await page.shows(`document.body.innerText.includes('You can sign in now.')`)
  await follow('Sign in')
  await page.shows(`location.pathname === '/oauth' && document.getElementById('email')`)
  await page.type('email', email)
  await page.type('password', 'a long new password')
  await page.press('button')
  await page.shows(`location.pathname === '/console'`)

  const bare = await openBotica(t, { env: { CONSOLE_ENABLED: 'false' } })
  t.notMatch(
    await (await fetch(`${bare.baseUrl}setpassword/${id}/${secret}`)).text(),
    'data-has-console',
  )
})

t.test('a password of an account of one project leads to the sign-in of the project', async (t) => {
  const email = anEmail()
  await invite(admin, project.id, { email, scope: 'project' })
  const [mail] = await mailsTo(services, email)
  // Without the session of the test before.
  const own = await openPage(t)
  await own.goto(/http\S+setpassword\S+/.exec(mail?.text ?? '')?.[0] ?? '')
  await own.type('password', 'a long new password')
  await own.type('again', 'a long new password')
  await own.press('button')
  await own.shows(`document.body.innerText.includes('You can sign in now.')`)
  await follow('Sign in', own)
  await own.shows(`location.pathname === '/oauth' && document.getElementById('email')`)
  await own.type('email', email)
  await own.type('password', 'a long new password')
  await own.press('button')
  await own.shows(`location.pathname === '/console'`)
  await own.shows(`document.body.innerText.includes(${JSON.stringify(project.name)})`)
})

t.test('shows why a sign-in that a provider has begun cannot continue', async (t) => {
  await page.goto(`${baseUrl}signin?login=00000000-0000-4000-8000-000000000000`)
  await page.shows(`document.getElementById('email')`)
  t.match(await page.value(`document.getElementById('problem').textContent`), 'Login not found')
})
