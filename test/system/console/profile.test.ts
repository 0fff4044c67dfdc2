/** People look after their own account: password, second factor and sessions. */
import t from 'tap'
import { oneTimeCode } from '../../fixtures/accounts.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
import {
  barriers,
  click,
  OPEN_MENU,
  openConsole,
  reads,
  signInOn,
} from '../../fixtures/http/console.ts'
import { aPerson, PASSWORD } from '../../fixtures/people.ts'

exitWithoutChromium(t)
const CHOSEN = 'another horse battery staple'
const botica = await openBotica(t)
const { services, baseUrl, project } = botica
const { email } = await aPerson(services, project)
/** The code of the authenticator app: https://datatracker.ietf.org/doc/html/rfc6238#section-4.2 */
const step = () => Math.floor(Date.now() / 30_000)
const page = await openConsole(t, { baseUrl, email })
const other = await openConsole(t, { baseUrl, email })

t.test('the account is opened from the menu', async (t) => {
  await page.press('[data-account]')
  await page.shows(`document.querySelector('[role=menu]')`)
  t.same(await barriers(page, OPEN_MENU), [])
  await page.press('[data-profile]')
  await page.shows(`location.pathname === '/console/profile'`)
  await reads(page, 'This session')
  await reads(page, email)
  t.same(await barriers(page), [])
  await reads(page, 'This session')
  await page.resize(390, 844)
  await page.shows('innerWidth === 390 && document.documentElement.scrollWidth <= innerWidth')
  await page.resize(1440, 900)
})

t.test('another session is ended', async (t) => {
  await reads(page, 'This session')
  t.equal(
    await page.value(`document.querySelectorAll('[aria-label^="End the session of"]').length`),
    1,
  )
  await page.press('[aria-label^="End the session of"]')
  await reads(page, 'The session was ended')
  await page.shows(`!document.querySelector('[aria-label^="End the session of"]')`)
  await other.goto(`${baseUrl}console/profile`)
  await reads(other, 'Sign in again')
})

t.test('a second factor is set up and disabled', async (t) => {
  await page.shows(`document.querySelector('img[alt="QR code for an authenticator app"]')`)
  const secret = await page.value<string>(`document.querySelector('#main code').innerText`)
  await page.write('input[name=token]', '000000')
  await click(page, 'Set up the second factor')
  await reads(page, 'Invalid token')
  await page.write('input[name=token]', oneTimeCode(secret, step()))
  await click(page, 'Set up the second factor')
  await reads(page, 'Signing in takes a code of your authenticator app')
  t.same(await barriers(page), [])
  // A code counts once.
  await page.write('input[name=token]', oneTimeCode(secret, step() + 1))
  await click(page, 'Disable the second factor')
  await reads(page, 'Scan the picture with an authenticator app')
})

t.test('the password is changed, and is not kept in the tab', async (t) => {
  await page.write('input[name=oldPassword]', 'not this')
  await page.write('input[name=newPassword]', CHOSEN)
  await page.write('input[name=repeated]', `${CHOSEN}!`)
  await click(page, 'Change the password')
  await reads(page, 'The two new passwords differ.')
  await page.write('input[name=repeated]', CHOSEN)
  await click(page, 'Change the password')
  await reads(page, 'Incorrect password')
  t.notOk(await page.value(`JSON.stringify({ ...sessionStorage }).includes('horse')`))
  await page.write('input[name=oldPassword]', PASSWORD)
  await click(page, 'Change the password')
  await reads(page, 'The password was changed')
  await page.shows(`document.querySelector('input[name=newPassword]').value === ''`)
  t.same(await barriers(page), [])
  await other.goto(`${baseUrl}console`)
  await other.value('sessionStorage.clear()')
  await other.goto(`${baseUrl}console/profile`)
  await signInOn(other, email, CHOSEN)
})
