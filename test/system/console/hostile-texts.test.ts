/** Texts that strangers have sent are shown as texts: names, narrative, addresses of attachments, log lines. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
import { openConsole } from '../../fixtures/http/console.ts'
import { aSubscription } from '../../fixtures/http/receiver.ts'
import { aPerson } from '../../fixtures/people.ts'

exitWithoutChromium(t)
const botica = await openBotica(t, { worker: true })
const { services, baseUrl, project, admin } = botica
const { email } = await aPerson(services, project, { details: { admin: true } })

const MARK = 'hostile'
const IMAGE = `<img id="planted" src="x" onerror="window.planted = 1">${MARK}`
const LINK = `javascript:window.planted=1//${MARK}`

const patient = await admin.create({
  resourceType: 'Patient',
  name: [{ family: IMAGE, given: ['<script>window.planted = 1</script>'] }],
  identifier: [{ system: LINK, value: IMAGE }],
  photo: [{ contentType: 'text/html', url: LINK, title: IMAGE }],
  telecom: [{ system: 'url', value: LINK }],
  generalPractitioner: [{ reference: LINK, display: IMAGE }],
})
const bot = await aBot(
  botica,
  handler(`console.log(event.input.text); throw new Error(event.input.text)`),
  { fields: { name: IMAGE, description: IMAGE } },
)
const failed = await execute(admin, bot, { text: IMAGE })
const runId = failed.headers.get('x-bot-run-id')
const hook = aSubscription('Patient', 'https://example.org/hook')
const subscription = await admin.create({ ...hook, reason: IMAGE })
await admin.create({ resourceType: 'AccessPolicy', name: IMAGE, resource: [] })
await botica.createMember({ name: IMAGE, description: IMAGE })

/** The text of a page, forms included. */
const shown = `document.body.innerText + [...document.querySelectorAll('input, textarea')].map(({ value }) => value).join()`
const page = await openConsole(t, { baseUrl, email, path: '/resources/Patient' })

for (const [what, path] of [
  ['the list of records', 'resources/Patient'],
  ['a record', `resources/Patient/${patient.id}`],
  ['the text of a record', `resources/Patient/${patient.id}/json`],
  ['the list of bots', 'bots'],
  ['a bot', `bots/${bot}`],
  ['the log of a run', `bots/${bot}/runs/${runId}`],
  ['a subscription', `resources/Subscription/${subscription.id}`],
  ['the list of policies', 'policies'],
  ['the list of clients', 'members/clients'],
] as const) {
  t.test(`shows markup as text in ${what}`, async (t) => {
    await page.goto(`${baseUrl}console/${path}`)
    await page.shows(`(${shown}).includes('${MARK}')`)
    t.equal(await page.value('typeof window.planted'), 'undefined')
    t.equal(await page.value('document.querySelectorAll("#planted, #root script").length'), 0)
    const links = `[...document.querySelectorAll('a[href], [src]')]
      .filter((one) => /^\\s*(javascript|data:text)/i.test(one.getAttribute('href') ?? one.getAttribute('src'))).length`
    t.equal(await page.value(links), 0, 'nor as an address that runs')
  })
}

t.test('stores no narrative with scripts', async (t) => {
  const narratives = [
    '<script>window.planted = 1</script>',
    '<img src="x" onerror="window.planted = 1"/>',
    `<a href="${LINK}">x</a>`,
    '<iframe src="https://example.org"></iframe>',
    '<svg onload="window.planted = 1"></svg>',
  ]
  for (const inner of narratives) {
    const div = `<div xmlns="http://www.w3.org/1999/xhtml">${inner}</div>`
    const text = { status: 'generated', div }
    const made = await admin.post<Untyped>('Patient', { resourceType: 'Patient', text })
    t.equal(made.status, 400, inner)
  }
})
