import { readdirSync, readFileSync } from 'node:fs'
import { stripTypeScriptTypes } from 'node:module'
import t from 'tap'
import { openGuest, plain, type Untyped } from '../../fixtures/bots/guest.ts'

const folder = new URL('../../data/hl7v2/', import.meta.url)
const names = readdirSync(folder).filter((name) => /^ADT.*\.hl7$/.test(name))
const source = stripTypeScriptTypes(
  readFileSync(new URL('../../../examples/admit.ts', import.meta.url), 'utf8'),
)

type Resource = Record<string, Untyped>

function openStore() {
  const stored: Resource[] = []
  const failure = { issue: undefined as string | undefined }

  async function call(_kind: string, request: Record<string, Untyped>) {
    const headers = { 'content-type': 'application/fhir+json' }
    if (failure.issue !== undefined) {
      const issue = [{ severity: 'error', code: 'invalid', details: { text: failure.issue } }]
      const body = JSON.stringify({ resourceType: 'OperationOutcome', issue })
      return { status: 400, headers, body }
    }
    const [type, query] = request.path.split('?')
    const resource = JSON.parse(request.body)
    const identifier = new URLSearchParams(query).get('identifier')?.replaceAll('\\', '')
    const found = stored.find(
      (one) =>
        one.resourceType === type &&
        one.identifier?.some((own: Resource) => `${own.system}|${own.value}` === identifier),
    )
    const id = found?.id ?? String(stored.length + 1)
    if (found !== undefined) stored.splice(stored.indexOf(found), 1)
    stored.push({ ...resource, id })
    const status = found === undefined ? 201 : 200
    return { status, headers, body: JSON.stringify({ ...resource, id }) }
  }

  return { stored, failure, call }
}

function openBot() {
  const store = openStore()
  const guest = openGuest({ call: store.call })
  const medplum = guest.load('./client.cjs').createClient(guest.host, guest.host.context)
  const core = guest.load('./core.cjs')
  const script = source
    .replace(/import \{([^}]*)\} from '@medplum\/core'/, 'const {$1} = core')
    .replace('export async function handler', 'async function handler')
  const handler = guest.run(`(function (core) {'use strict'; ${script}\nreturn handler})`)(core)
  const post = async (text: string) =>
    handler(medplum, {
      input: core.Hl7Message.parse(text),
      contentType: 'x-application/hl7-v2+er7',
    })
  return { ...store, post, handler, medplum }
}

function read(name: string): string {
  return readFileSync(new URL(name, folder), 'utf8')
}

const statuses = ['planned', 'in-progress', 'onleave', 'finished', 'cancelled']
const genders = ['male', 'female', 'other', 'unknown', undefined]

function faults(resource: Resource): string[] {
  const found: string[] = []
  const text = JSON.stringify(resource)
  if (/""|\[\]|\{\}|null/.test(text)) found.push('something is empty')
  for (const identifier of resource.identifier ?? []) {
    if (!/^(urn:oid:[0-2](\.\d+)+|https:\/\/\S+)$/.test(identifier.system)) found.push('system')
    if (!/^\S(.*\S)?$/.test(identifier.value)) found.push('value')
  }
  if (resource.resourceType === 'Patient') {
    if (!genders.includes(resource.gender)) found.push('gender')
    if (!/^\d{4}(-\d\d(-\d\d)?)?$/.test(resource.birthDate ?? '2000')) found.push('birthDate')
    if (resource.telecom?.some((one: Resource) => !one.system || !one.value)) found.push('telecom')
    return found
  }
  if (!statuses.includes(resource.status)) found.push('status')
  if (!resource.class?.code || !resource.class.system) found.push('class')
  if (!/^Patient\/\d+$/.test(resource.subject.reference)) found.push('subject')
  const { start = '0', end = '9' } = resource.period ?? {}
  if (start > end) found.push('period')
  return found
}

for (const name of names) {
  t.test(`accepts ${name} and creates valid resources`, async (t) => {
    const bot = openBot()
    const ack = await bot.post(read(name))
    t.equal(ack.getSegment('MSA').getComponent(1, 1), 'AA', ack.toString())
    t.equal(ack.header.getComponent(9, 1), 'ACK')
    t.equal(bot.stored.filter((one) => one.resourceType === 'Patient').length, 1)
    for (const resource of bot.stored) t.same(faults(resource), [])
  })
}

t.test('keeps one patient and one encounter for a repeated visit', async (t) => {
  const bot = openBot()
  await bot.post(read('ADT-A01-01.hl7'))
  await bot.post(read('ADT-A03-01.hl7'))
  t.equal(bot.stored.length, 2)
  const encounter = bot.stored.find((one) => one.resourceType === 'Encounter')
  t.match(encounter, {
    status: 'finished',
    period: { start: '2015-02-08T10:24:19.000Z', end: '2015-02-09T10:24:19.000Z' },
    identifier: [{ system: 'urn:oid:1.2', value: '40007716' }],
    class: { code: 'PRENC' },
  })
})

t.test('maps PID to a complete patient', async (t) => {
  const bot = openBot()
  await bot.post(read('ADT04-28.hl7'))
  t.same(plain(bot.stored[0]), {
    resourceType: 'Patient',
    id: '1',
    identifier: [
      {
        type: {
          coding: [{ system: 'http://terminology.hl7.org/CodeSystem/v2-0203', code: 'MR' }],
        },
        system: 'https://example.org/fhir/sid/mrn/MR',
        value: '0000000001',
      },
      {
        system: 'https://example.org/fhir/sid/id/EHRID',
        value: 'e167267c-16c9-4fe3-96ae-9cff5703e90a',
      },
      { system: 'https://example.org/fhir/sid/id/NIST', value: 'a1d4ee8aba494ca' },
    ],
    active: true,
    name: [{ family: 'Bixby', given: ['Timothy', 'Paul'] }],
    telecom: [{ system: 'phone', value: '8088675301', use: 'home' }],
    gender: 'male',
    birthDate: '2008-01-06',
    address: [
      {
        line: ['4762 Hickory Street'],
        city: 'Monroe',
        state: 'WI',
        postalCode: '53566',
        country: 'US',
      },
    ],
  })
})

const events = [
  ['A01', 'in-progress'],
  ['A03', 'finished'],
  ['A05', 'planned'],
  ['A11', 'cancelled'],
  ['A21', 'onleave'],
  ['A31', undefined],
]

for (const [trigger, status] of events) {
  t.test(`sets the encounter to ${status ?? 'no new status'} for ${trigger}`, async (t) => {
    const bot = openBot()
    const header = `MSH|^~\\&|A|B|C|D|2020||ADT^${trigger}|1|P|2.5`
    await bot.post(`${header}\rPID|1||7\rPV1|1|E`)
    t.equal(bot.stored[1]?.status, status)
    t.equal(bot.stored[1]?.class.code, status && 'EMER')
  })
}

t.test('keeps resources valid for escaped, odd and impossible values', async (t) => {
  const bot = openBot()
  const pid = 'PID|1||a,b\\F\\c^^^X Y||O\\T\\M\\S\\x^""||20200230|X|||\\.br\\^^Ort|'
  const pv1 = `PV1|1|?${'|'.repeat(42)}20200102|20200101`
  await bot.post(`MSH|^~\\&|A|B|C|D|2020||ADT^A01|1|P|2.5\r${pid}\r${pv1}`)
  const [patient, encounter] = bot.stored
  t.equal(patient?.identifier[0].value, 'a,b|c')
  t.equal(patient?.identifier[0].system, 'https://example.org/fhir/sid/mrn/X%20Y')
  t.same(plain(patient?.name), [{ family: 'O&M^x' }])
  t.equal(patient?.birthDate, undefined)
  t.equal(patient?.gender, undefined)
  t.same(plain(encounter?.period), { start: '2020-01-02T00:00:00.000Z' })
  t.equal(encounter?.class.code, 'AMB')
})

const refusals: [string, string, string, string][] = [
  ['MSH|^~\\&|A|B|C|D|2020||ORU^R01|1|P|2.5\rPID|1||7', 'AR', '200', 'MSH^1^9'],
  ['MSH|^~\\&|A|B|C|D|2020||ADT^A01|1|P|2.5', 'AE', '100', 'PID'],
  ['MSH|^~\\&|A|B|C|D|2020||ADT^A01|1|P|2.5\rPID|1||^^^X', 'AE', '101', 'PID^1^3'],
  ['MSH|^~\\&', 'AR', '200', 'MSH^1^9'],
]

for (const [text, code, problem, place] of refusals) {
  t.test(`answers ${JSON.stringify(text)} with ${code} and error ${problem}`, async (t) => {
    const bot = openBot()
    const ack = await bot.post(text)
    const [, msa, err] = ack.segments
    t.equal(msa.getComponent(1, 1), code)
    t.equal(err.getComponent(3, 1), problem)
    t.equal(String(err.getField(2)), place)
    t.equal(bot.stored.length, 0)
  })
}

t.test('rejects input that is not a message', async (t) => {
  const bot = openBot()
  for (const input of ['hello', {}, undefined, 5]) {
    const ack = await bot.handler(bot.medplum, { input })
    t.match(ack.toString(), /\rMSA\|AR\|\|Application Reject\rERR\|\|\|100\^/)
  }
})

t.test('answers a header without separators', async (t) => {
  const bot = openBot()
  t.match((await bot.post('MSH')).toString(), /^MSH/)
  t.equal(bot.stored.length, 0)
})

t.test('reports an error of the store in the acknowledgment', async (t) => {
  const bot = openBot()
  bot.failure.issue = 'No | today\r\nsorry'
  const ack = await bot.post('MSH|^~\\&|A|B|C|D|2020||ADT^A01|9|P|2.5\rPID|1||7')
  t.match(ack.toString(), /\rMSA\|AE\|9\|Application Error\rERR\|\|\|207\^/)
  t.match(ack.toString(), /\|No \\F\\ today sorry$/)
})
