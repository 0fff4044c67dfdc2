/** Five jobs of everyday work, by the mouse and the keyboard alone, with their clicks counted. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { ALL_QUEUES, openBotica, until } from '../../fixtures/botica.ts'
import type { Untyped } from '../../fixtures/bots/bots.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
import { openConsole, reads, saved, withText } from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

exitWithoutChromium(t)
// Its worker takes all waiting jobs of the database.
const env = {
  DATABASE_URL: await createDatabase(t),
  WORKER_QUEUES: ALL_QUEUES,
  BOT_INPUT_ARCHIVE: 'true',
}
const botica = await openBotica(t, { worker: true, env })
const { services, baseUrl, project, admin, superAdmin } = botica
await superAdmin.put(`Project/${project.id}`, {
  ...project,
  setting: [{ name: 'BOT_INPUT_ARCHIVE', valueBoolean: true }],
})
const { email } = await aPerson(services, project, { details: { admin: true } })
const patient = await admin.create({
  resourceType: 'Patient',
  name: [{ family: 'Quinones', given: ['Maria'] }],
})
await admin.create({
  resourceType: 'Observation',
  status: 'final',
  code: { text: 'Body mass index' },
  subject: { reference: `Patient/${patient.id}` },
  effectiveDateTime: '2026-03-01',
  valueQuantity: { value: 23.4, unit: 'kg/m2' },
})
const page = await openConsole(t, { baseUrl, email })
let clicks = 0

async function goHome(): Promise<void> {
  await page.goto(`${baseUrl}console`)
  await reads(page, 'Runs in 7 days')
  clicks = 0
}

async function clickOn(expression: string): Promise<void> {
  await page.mouse(expression)
  clicks += 1
}

const within = (selector: string, text: string) =>
  `[...document.querySelectorAll(${JSON.stringify(selector)})].find((one) => one.textContent.includes(${JSON.stringify(text)}))`

t.test('a patient and their observations are found with two clicks', async (t) => {
  await goHome()
  await clickOn(`document.querySelector('#find')`)
  await page.shows(
    `document.activeElement?.getAttribute('aria-label')?.startsWith('Search records')`,
  )
  await page.keys('quin')
  await clickOn(within('[role=dialog] [role=status] button:not([data-disabled])', 'Maria Quinones'))
  await page.shows(`document.querySelector('#title').textContent === 'Maria Quinones'`)
  await reads(page, 'Body mass index')
  await reads(page, '23.4 kg/m2')
  t.equal(clicks, 2)
})

t.test('everything is exported and downloaded with three clicks', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'botica-downloads-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  await page.saveTo(folder)
  await goHome()
  await clickOn(within('nav a', 'Jobs'))
  await clickOn(withText('Export everything'))
  await clickOn(withText('Save all files'))
  const [line = ''] = (await saved(join(folder, '1.Patient.ndjson'))).split('\n')
  t.match(JSON.parse(line), patient)
  const names = await page.value<readonly string[]>(
    `[...document.querySelectorAll('td button')].map((one) => one.textContent.replace('Save ', ''))`,
  )
  t.ok(names.length > 1)
  for (const name of names) t.match(await saved(join(folder, name)), /^\{"resourceType"/)
  t.equal(clicks, 3)
})

t.test('the home page leads to the reason of a failed delivery with one click', async (t) => {
  const subscription = await admin.create({
    resourceType: 'Subscription',
    status: 'active',
    reason: 'Tell the partner',
    extension: [
      {
        url: 'https://medplum.com/fhir/StructureDefinition/subscription-max-attempts',
        valueInteger: 1,
      },
    ],
    criteria: 'Basic?',
    channel: { type: 'rest-hook', endpoint: 'http://127.0.0.1:9/nobody' },
  })
  await admin.create({ resourceType: 'Basic', code: { text: 'a change' } })
  const path = `/admin/projects/${project.id}/subscriptions`
  await until(
    async () => (await admin.get<Untyped>(path)).body.subscriptions[0]?.failures > 0,
    60_000,
  )
  await goHome()
  await page.shows(
    `${within('#main a', 'Failing subscriptions')}.closest('.mantine-Card-root').innerText.endsWith('1')`,
  )
  await clickOn(within('[role=alert] a', 'failed deliveries'))
  await page.shows(`location.pathname === '/console/subscriptions/${subscription.id}'`)
  await page.shows(`${within('tbody tr', 'Basic')}.textContent.includes('ECONNREFUSED')`)
  t.equal(clicks, 1)
})

const code = (body: string) =>
  `export async function handler(medplum: unknown, event: { input: { name: string } }) {\n  ${body}\n}\n`

const CODE = '[aria-label="Code of the bot"]'

async function deploy(body: string): Promise<void> {
  await page.write(CODE, code(body))
  await page.shows(withText('Discard'))
  await clickOn(`document.querySelector('#deploy')`)
  // The note of an earlier deployment may still be there.
  await page.shows(`!${withText('Discard')}`)
  await reads(page, 'Deployed: the next run uses this code')
}

t.test('a bot is written, tested, broken, debugged and run again with 8 clicks', async (t) => {
  await goHome()
  await clickOn(within('nav a', 'Bots'))
  await clickOn(withText('New bot'))
  await page.write('[role=dialog] input', 'Greeter')
  await page.key('Enter')
  await page.shows(`document.querySelector('${CODE}')?.textContent.includes('handler')`)
  await deploy('return { hello: event.input.name }')
  await page.write('[aria-label="Input"]', '{ "name": "Ada" }')
  await clickOn(`document.querySelector('#run')`)
  await page.shows(`document.querySelector('#answer')?.textContent.includes('Ada')`)
  await deploy("throw new Error('broken on purpose')")
  await clickOn(`document.querySelector('#run')`)
  await page.shows(`document.querySelector('#live')?.textContent.includes('broken on purpose')`)
  await deploy('return { fixed: event.input.name }')
  await clickOn(`document.querySelector('#run')`)
  await page.shows(`document.querySelector('#answer')?.textContent.includes('fixed')`)
  t.equal(clicks, 8)
})

// The policy is at hand: one for an organization is still written as JSON.
t.test('a person is invited with a policy for one organization with three clicks', async (t) => {
  const organization = await admin.create({ resourceType: 'Organization', name: 'Ward North' })
  const policy = await admin.create({
    resourceType: 'AccessPolicy',
    name: 'Ward North',
    resource: [
      { resourceType: 'Patient', criteria: `Patient?organization=Organization/${organization.id}` },
    ],
  })
  await goHome()
  await clickOn(within('nav a', 'Members'))
  await clickOn(withText('Invite a person'))
  await page.write('input[name=firstName]', 'Grace')
  await page.write('input[name=lastName]', 'Hopper')
  await page.write('input[name=email]', 'grace@example.org')
  await page.shows(
    `document.querySelector('select[name=accessPolicy] option[value$="${policy.id}"]')`,
  )
  await page.value(`document.querySelector('select[name=accessPolicy]').focus()`)
  await page.keys('Ward')
  await clickOn(`document.querySelector('#main form [type=submit]')`)
  await page.shows(`location.pathname.startsWith('/console/members/member/')`)
  const id = (await page.value<string>('location.pathname')).split('/').at(-1)
  const { body } = await admin.get(`ProjectMembership/${id}`)
  t.match(body, {
    profile: { display: 'Grace Hopper' },
    accessPolicy: { reference: `AccessPolicy/${policy.id}` },
  })
  t.equal(clicks, 3)
})
