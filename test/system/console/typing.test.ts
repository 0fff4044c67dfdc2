/** Values of every datatype, typed key by key into the form of a record: nothing is lost, and digits stay. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
import { barriers, click, holdAnswers, openConsole, reads } from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'
import { CASES, type Case } from './datatypes.ts'

exitWithoutChromium(t)
const botica = await openBotica(t)
const { services, baseUrl, project, admin } = botica
const { email } = await aPerson(services, project, { details: { admin: true } })
const page = await openConsole(t, { baseUrl, email, path: '/resources' })

/** Each key draws the whole form. */
const SIZE = 3
/** The form shows neither, and keeps them. */
const UNSEEN =
  '"text":{"status":"generated","div":"<div xmlns=\\"http://www.w3.org/1999/xhtml\\">A  <b>task</b></div>"},"extension":[{"url":"urn:x","valueDecimal":3.140}]'

t.test('the cases are all types of value[x]', async (t) => {
  const url = 'http://hl7.org/fhir/StructureDefinition/Task'
  const { body } = await admin.get<Found>(`StructureDefinition?url=${url}`)
  const elements = body.entry[0]?.resource.snapshot.element ?? []
  const types = elements.find(({ path }) => path === 'Task.input.value[x]')?.type ?? []
  t.same(Object.keys(CASES).toSorted(), types.map(({ code }) => code).toSorted())
})

interface Found {
  readonly entry: readonly {
    readonly resource: { readonly snapshot: { readonly element: readonly Definition[] } }
  }[]
}

interface Definition {
  readonly path: string
  readonly type?: readonly { readonly code: string }[]
}

const names = Object.keys(CASES)
for (let from = 0; from < names.length; from += SIZE) {
  const some = names.slice(from, from + SIZE)
  t.test(`${some.join(', ')} are emptied, typed again and saved`, async (t) => {
    const { id, text: before } = await aTask(some)
    await page.goto(`${baseUrl}console/resources/Task/${id}/form`)
    for (const name of some) {
      const { into = '', typed } = findCase(name)
      const field = await focused(`${elementName(name)} ${into}`)
      await page.key('All')
      await page.key('Backspace')
      if (name !== 'boolean') {
        t.equal(await page.value('document.activeElement.value'), '', `${name} is shown empty`)
      }
      await page.keys(typed)
      t.equal(await page.value(`${field} === document.activeElement`), true, `${name} keeps focus`)
      t.equal(await page.value(`${field}.value`), typed, name)
    }
    await page.press('#save')
    await isSaved()
    const expected = some.reduce((text, name) => {
      const { value, typed, stored = JSON.stringify(typed) } = findCase(name)
      const own = `"${elementName(name)}":`
      return text.replace(own + plain(value), own + value.replace(/‹.*›/, () => stored))
    }, before)
    t.equal(await readContent(id), expected)
  })
}

t.test('an emptied value is saved only after a question that names it', async (t) => {
  const { id, text: before } = await aTask(['HumanName', 'date'])
  await page.goto(`${baseUrl}console/resources/Task/${id}/form`)
  await focused('valueDate')
  await page.key('All')
  await page.key('Backspace')
  await page.press('#save')
  await reads(page, 'Saving removes this')
  await reads(page, '1985-07-09')
  t.same(await barriers(page), [])
  await click(page, 'Keep editing')
  await page.shows(`document.querySelector('[data-element=valueDate] input').value === ''`)
  t.equal(await readContent(id), before, 'nothing was sent')
  await focused('valueDate')
  await page.keys('1985')
  await page.press('#save')
  await isSaved()
  t.equal(await readContent(id), before.replace('1985-07-09', '1985'))
})

t.test('an element goes by its own button, with its extensions', async (t) => {
  const patient = await admin.create({
    resourceType: 'Patient',
    name: [{ family: 'Mayer' }],
    birthDate: '1985-07-09',
    _birthDate: { extension: [{ url: 'urn:x', valueString: 'guessed' }] },
    gender: 'female',
  })
  await page.goto(`${baseUrl}console/resources/Patient/${patient.id}/form`)
  await page.press('[aria-label="Remove birthDate"]')
  await page.press('#save')
  await reads(page, 'guessed')
  await page.press('[data-confirm]')
  await isSaved()
  const { body } = await admin.get(`Patient/${patient.id}`)
  t.match(body, { name: [{ family: 'Mayer' }], gender: 'female' })
  t.notHas(body, 'birthDate')
  t.notHas(body, '_birthDate')
})

t.test('the first item of a list is emptied and typed again in its place', async (t) => {
  const besides = [null, { extension: [{ url: 'urn:x', valueString: 'b' }] }, { id: 'third' }]
  const patient = await admin.create({
    resourceType: 'Patient',
    name: [{ given: ['Ann', 'Bea', null], _given: besides }, { family: 'Two' }],
  })
  await page.goto(`${baseUrl}console/resources/Patient/${patient.id}/form`)
  await focused('name given')
  await page.key('All')
  await page.key('Backspace')
  t.equal(await page.value(`document.querySelectorAll('[data-element=given] input').length`), 3)
  await page.keys('Zoe')
  await page.press('#save')
  await isSaved()
  const saved = await admin.get(`Patient/${patient.id}`)
  t.same(saved.body.name, [{ given: ['Zoe', 'Bea', null], _given: besides }, { family: 'Two' }])
  await page.press('[aria-label="Remove given 1"]')
  await page.press('#save')
  await reads(page, 'name[0].given[0]')
  await page.press('[data-confirm]')
  await isSaved()
  const shorter = await admin.get(`Patient/${patient.id}`)
  t.same(shorter.body.name, [{ given: ['Bea', null], _given: besides.slice(1) }, { family: 'Two' }])
})

t.test('does not overwrite a version saved meanwhile by another user', async (t) => {
  const patient = await admin.create({
    resourceType: 'Patient',
    name: [{ family: 'Mayer' }],
    birthDate: '1985-07-09',
  })
  await page.goto(`${baseUrl}console/resources/Patient/${patient.id}/form`)
  await focused('birthDate')
  await page.key('All')
  await page.keys('1990-01-02')
  const { meta: _, ...theirs } = { ...patient, name: [{ family: 'Meyer' }], gender: 'other' }
  await admin.put(`Patient/${patient.id}`, theirs)
  await page.press('#save')
  await reads(page, 'Version 2 was saved while you were typing')
  t.equal(
    await page.value(`document.querySelector('[data-element=birthDate] input').value`),
    '1990-01-02',
  )
  await click(page, 'Compare with version 2')
  await page.shows(`document.querySelector('.cm-mergeView .cm-changedLine')`)
  t.same(await barriers(page), [])
  await click(page, 'Apply my changes to version 2')
  await page.shows(`document.querySelector('[data-element=family] input').value === 'Meyer'`)
  t.equal(
    await page.value(`document.querySelectorAll('[role=alert]').length`),
    0,
    'it is dealt with',
  )
  await page.press('#save')
  await isSaved()
  const { body } = await admin.get(`Patient/${patient.id}`)
  t.match(body, {
    meta: { versionId: '3' },
    name: [{ family: 'Meyer' }],
    gender: 'other',
    birthDate: '1990-01-02',
  })
})

t.test('tags and profiles stay when changes are applied and versions restored', async (t) => {
  const [ward, seen] = ['ward', 'seen'].map((code) => ({ system: 'urn:tags', code }))
  const own = { profile: ['http://hl7.org/fhir/StructureDefinition/Patient'], source: 'urn:source' }
  const patient = await admin.create({
    resourceType: 'Patient',
    meta: { ...own, tag: [ward] },
    name: [{ family: 'Mayer' }],
  })
  const path = `Patient/${patient.id}`
  await page.goto(`${baseUrl}console/resources/${path}/json`)
  const typed = { ...patient, meta: { ...patient.meta, tag: [ward, seen] } }
  await page.write('.cm-content', JSON.stringify(typed))
  await admin.put(path, { ...patient, gender: 'other' })
  await page.press('#save')
  await click(page, 'Apply my changes to version 2')
  await page.press('#save')
  await isSaved()
  const { body } = await admin.get(path)
  t.match(body, { meta: { ...own, versionId: '3', tag: [ward, seen] }, gender: 'other' })
  const { meta: _, ...bare } = patient
  await admin.put(path, bare)
  t.notHas((await admin.get(path)).body.meta, 'tag')
  await page.goto(`${baseUrl}console/resources/${path}/history`)
  await click(page, 'Restore version 3')
  await reads(page, 'Restored as the newest version')
  const { body: restored } = await admin.get(path)
  t.match(restored.meta, { ...own, versionId: '5', tag: [ward, seen] })
})

t.test(
  'a new element accepts text at once, and an invalid number is rejected with its path',
  async (t) => {
    const patient = await admin.create({ resourceType: 'Patient', name: [{ family: 'Mayer' }] })
    await page.goto(`${baseUrl}console/resources/Patient/${patient.id}/form`)
    await page.shows(`document.querySelector('[data-element=name] input')`)
    await page.value(
      `[...document.querySelectorAll('input[aria-label="Add an element"]')].at(-1).focus()`,
    )
    await page.keys('multipleBirthInt')
    await page.key('Enter')
    await page.shows(`document.activeElement.name === 'multipleBirthInteger'`)
    await page.keys('two')
    await page.press('#save')
    await reads(page, 'Patient.multipleBirth')
    t.equal(await page.value('document.querySelector("[name=multipleBirthInteger]").value'), 'two')
    await focused('multipleBirthInteger')
    await page.key('All')
    await page.keys('2')
    await page.press('#save')
    await isSaved()
    t.match((await admin.get(`Patient/${patient.id}`)).body, { multipleBirthInteger: 2 })
    t.same(await barriers(page), [])
  },
)

t.test('Enter in a list of options chooses one and does not create the record', async (t) => {
  const { id } = await admin.create({ resourceType: 'Organization', name: 'Harbour' })
  await admin.create({ resourceType: 'Organization', name: 'Pier' })
  await page.goto(`${baseUrl}console/resources/Organization/new`)
  await focused('name')
  await page.keys('Ward')
  const add = `[...document.querySelectorAll('input[aria-label="Add an element"]')].at(-1)`
  await page.act(add, 'found.focus()')
  await page.key('Enter')
  await page.keys('nonsense')
  await page.key('Enter')
  await page.key('All')
  await page.keys('partOf')
  await page.key('Enter')
  await page.shows(`document.activeElement.getAttribute('aria-label') === 'Find a record'`)
  await page.key('Enter')
  await page.keys('Harbour')
  await page.key('Enter')
  await page.shows(`[...document.querySelectorAll('[role=option]')]
    .find((one) => one.offsetParent !== null)?.textContent.includes('Harbour')`)
  await page.key('Enter')
  await page.key('ArrowDown')
  await page.key('Enter')
  await page.shows(
    `document.querySelector('[data-element=reference] input').value === 'Organization/${id}'`,
  )
  t.equal(await page.value('location.pathname'), '/console/resources/Organization/new')
  t.notMatch((await admin.get('Organization?name=Ward')).text, '"entry"')
})

t.test('an older version comes back with its digits', async (t) => {
  const { id, text: before } = await aTask(['decimal'])
  const task = JSON.parse(before)
  await admin.put(`Task/${id}`, { ...task, id, input: undefined })
  await page.goto(`${baseUrl}console/resources/Task/${id}/history`)
  await click(page, 'Restore version 1')
  await reads(page, 'Restored as the newest version')
  t.equal(await readContent(id), before)
})

t.test('text that is typed in another view while a save runs is kept', async (t) => {
  const patient = await admin.create({ resourceType: 'Patient', name: [{ family: 'Mayer' }] })
  const place = `${baseUrl}console/resources/Patient/${patient.id}`
  await page.goto(`${place}/form`)
  await focused('name family')
  await page.key('All')
  await page.keys('Meyer')
  const release = await holdAnswers(page, `fhir/R4/Patient/${patient.id}`)
  await page.press('#save')
  await page.shows(`document.querySelector('#save[data-loading]')`)
  await click(page, 'History')
  await page.shows(`document.querySelector('table[aria-label=Versions]')`)
  await click(page, 'JSON')
  const typed = { ...patient, name: [{ family: 'Meyer' }], gender: 'other' }
  await page.write('.cm-content', JSON.stringify(typed))
  await release()
  await reads(page, 'Saved')
  await page.goto(`${place}/form`)
  await reads(page, 'This is text you typed earlier')
  await page.shows(`document.querySelector('[data-element=gender] select').value === 'other'`)
  await page.press('#save')
  await isSaved()
  const { body } = await admin.get(`Patient/${patient.id}`)
  t.match(body, { meta: { versionId: '3' }, name: [{ family: 'Meyer' }], gender: 'other' })
})

t.test('a record that is too large for the storage of the tab is edited', async (t) => {
  const photo = { url: 'urn:x', valueBase64Binary: 'QUJD'.repeat(1_500_000) }
  const name = [{ family: 'Mayer' }]
  const { id } = await admin.create({ resourceType: 'Patient', extension: [photo], name })
  await page.goto(`${baseUrl}console/resources/Patient/${id}/form`)
  const field = await focused('name family')
  await page.key('All')
  await page.keys('Okafor')
  t.equal(await page.value(`${field}.value`), 'Okafor')
  await click(page, 'History')
  await reads(page, 'There is only one version')
  await click(page, 'Form')
  await page.shows(`${field}?.value === 'Okafor'`)
  await page.press('#save')
  await isSaved()
  t.match((await admin.get(`Patient/${id}`)).body, {
    extension: [photo],
    name: [{ family: 'Okafor' }],
  })
})

/** A Task with an input of each of these types. Returns its content as it is stored. */
async function aTask(names: readonly string[]) {
  const inputs = names.map((name) => {
    return `{"type":{"text":"${name}"},"${elementName(name)}":${plain(findCase(name).value)}}`
  })
  const body = `{"resourceType":"Task",${UNSEEN},"status":"draft","intent":"order","input":[${inputs}]}`
  const headers = { 'Content-Type': 'application/fhir+json' }
  const answer = await admin.post('Task', body, headers)
  t.equal(answer.status, 201, answer.text)
  const { id = '' } = answer.body
  return { id, text: await readContent(id) }
}

/** The notification appears with the response, the fields with the stored values. */
async function isSaved(): Promise<void> {
  await page.shows(
    `document.body.innerText.includes('Saved') && !document.querySelector('[inert]')`,
  )
  await page.press('[role=alert] [aria-label=Close], .mantine-Notification-closeButton')
  await page.shows(`!document.body.innerText.includes('Saved')`)
}

async function readContent(id: string): Promise<string> {
  const { text } = await admin.get(`Task/${id}`)
  return text.replace(/"meta":\{[^}]*\},/, '')
}

function findCase(name: string): Case {
  const found = CASES[name]
  if (found === undefined) throw new Error(`No case for ${name}`)
  return found
}

function elementName(name: string): string {
  return `value${name.charAt(0).toUpperCase()}${name.slice(1)}`
}

function plain(value: string): string {
  return value.replace(/[‹›]/g, '')
}

/** Puts the focus into the input below these elements. Returns an expression for it. */
async function focused(elements: string): Promise<string> {
  const path = elements
    .trim()
    .split(' ')
    .map((name) => `[data-element=${name}]`)
  const field = `document.querySelector('${path.join(' ')} :is(input, textarea, select)')`
  await page.act(field, 'found.focus()')
  return field
}
