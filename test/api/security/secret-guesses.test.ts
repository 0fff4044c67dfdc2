/**
 * Members guess hidden values through everything that evaluates stored resources: right and wrong guesses must get
 * the same response. Imports the tables of routes and operations, so that none is left out.
 */
import t, { type Test } from 'tap'
import { nonFhirRoutes } from '../../../server/app.ts'
import { createMetrics } from '../../../server/http/metrics.ts'
import { authenticate } from '../../../server/middleware/authenticate.ts'
import { fhirPaths } from '../../../server/openapi/describe.ts'
import { operations } from '../../../shared/api/operations.ts'
import { openBotica } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { changeMembership, memberUnder } from '../../fixtures/policy/policy.ts'
import { aPatient, aSearchParameter } from '../../fixtures/resources.ts'
import {
  EVALUATING,
  INTERACTIONS,
  normalizeAnswer,
  OTHERS,
  PROBES,
  prepared,
  REST,
  ROUTES,
  type Target,
} from './guesses.ts'

const botica = await openBotica(t)
const { admin, adminCredentials, project, superAdmin } = botica
const MARK = [{ url: 'https://example.org/mark', valueString: 'mark' }]
const HEADER = 'Authorization: Bearer qX7header'
const SIGNING = 'qX7signing'
const PROVIDER = {
  authorizeUrl: 'https://idp.example/authorize',
  tokenUrl: 'https://idp.example/token',
  userInfoUrl: 'https://idp.example/userinfo',
  clientId: 'qX7client',
  clientSecret: 'qX7provider',
}
const SIGNED = [
  ...MARK,
  {
    url: 'https://www.medplum.com/fhir/StructureDefinition/subscription-secret',
    valueString: SIGNING,
  },
]
const CHANNEL = { type: 'rest-hook', endpoint: 'https://hook.example/', header: [HEADER] }

await superAdmin.patch(`ClientApplication/${adminCredentials.id}`, [
  { op: 'add', path: '/retiringSecret', value: 'qX7retiring' },
  { op: 'add', path: '/description', value: 'none' },
  { op: 'add', path: '/extension', value: MARK },
  { op: 'add', path: '/identityProvider', value: PROVIDER },
])
const subscription = await admin.create({
  resourceType: 'Subscription',
  status: 'active',
  reason: 'none',
  criteria: 'Basic?code=none',
  extension: SIGNED,
  channel: CHANNEL,
})
const patient = await admin.create(aPatient({ birthDate: '1985-02-03', extension: MARK }))

const client = { type: 'ClientApplication', id: adminCredentials.id, free: 'description' }
const hook = { type: 'Subscription', id: subscription.id, free: 'reason' }
const TARGETS: readonly Target[] = [
  { ...client, pointer: '/secret', path: 'secret', value: adminCredentials.secret },
  { ...client, pointer: '/retiringSecret', path: 'retiringSecret', value: 'qX7retiring' },
  {
    ...client,
    pointer: '/identityProvider/clientSecret',
    path: 'identityProvider.clientSecret',
    value: 'qX7provider',
  },
  {
    ...client,
    pointer: '/identityProvider/clientId',
    path: 'identityProvider.clientId',
    value: 'qX7client',
  },
  { ...hook, pointer: '/channel/header/0', path: 'channel.header', value: HEADER },
  {
    ...hook,
    pointer: '/extension/1/valueString',
    path: "extension.where(url.endsWith('secret')).value",
    value: SIGNING,
  },
]
const BIRTH: Target = {
  type: 'Patient',
  id: patient.id,
  pointer: '/birthDate',
  path: 'birthDate.toString()',
  value: '1985-02-03',
  free: 'language',
}

const everything = [{ resourceType: '*' }]
const [free, starred, reader, writer, hiding] = await Promise.all([
  botica.createMember(),
  memberUnder(botica, { entries: everything }),
  memberUnder(botica, { entries: [{ resourceType: '*', readonly: true }] }),
  memberUnder(botica, {
    entries: [
      { resourceType: 'StructureDefinition' },
      { resourceType: 'GraphDefinition' },
      ...everything,
    ],
  }),
  memberUnder(botica, {
    entries: [{ resourceType: 'Patient', hiddenFields: ['birthDate'] }, ...everything],
  }),
])
const other = await botica.createTenant()
await superAdmin.patch(`Project/${other.project.id}`, [
  { op: 'add', path: '/link', value: [{ project: { reference: `Project/${project.id}` } }] },
])
const linked = await botica.createMember({}, other.project.id)

async function tryAll(t: Test, client: Client, targets: readonly Target[]): Promise<void> {
  for (const target of targets) {
    const { value } = target
    const right = value.slice(0, 7)
    const wrong = [...right]
      .map((letter) => (/\d/.test(letter) ? (Number(letter) + 1) % 10 : 'z'))
      .join('')
    const guesses = [await prepared(client, target, right), await prepared(client, target, wrong)]
    for (const [name, probe] of PROBES) {
      const answers: string[] = []
      for (const guess of guesses) {
        const answer = await probe(guess)
        if (answer.status >= 500) t.fail(`${name} returns ${answer.status}`)
        if (value !== BIRTH.value && answer.text.includes(value.slice(-9)))
          t.fail(`${name} shows ${target.path}`)
        answers.push(normalizeAnswer(answer, guess))
      }
      t.equal(answers[0], answers[1], `${name} of ${target.type}.${target.path}`)
    }
  }
}

t.test('classifies every operation as evaluating resources or not', async (t) => {
  const known = [...Object.keys(EVALUATING), ...Object.keys(OTHERS)].sort()
  t.same([...new Set(operations.map(({ name }) => name))].sort(), known)
})

t.test('classifies every REST interaction and every route for members', async (t) => {
  const { services } = botica
  const web = { services, metrics: createMetrics(services) }
  const interactions = fhirPaths.map(({ path }) => path).filter((path) => !path.includes('$'))
  t.same([...new Set(interactions)].sort(), Object.keys(INTERACTIONS).sort())
  for (const names of Object.values(INTERACTIONS)) {
    for (const name of [names].flat().filter(() => Array.isArray(names))) t.ok(REST[name], name)
  }
  const others = ['public', 'administrator', 'super-administrator']
  const routes = nonFhirRoutes(web, authenticate(web)).filter(
    ({ path, access }) => !others.includes(String(access)) && path !== '/metrics',
  )
  t.same([...new Set(routes.map(({ path }) => path))].sort(), ROUTES)
})

for (const [name, { client }] of Object.entries({ free, starred, reader, writer, linked })) {
  t.test(`reveals no secret to guesses of a ${name} member`, (t) => tryAll(t, client, TARGETS))
}

t.test('reveals no hidden field of a policy to guesses of a member', (t) =>
  tryAll(t, hiding.client, [BIRTH]),
)

t.test('answers a write of a whole secret like one of another value', async (t) => {
  const named = await memberUnder(botica, {
    entries: [{ resourceType: 'ClientApplication' }, ...everything],
  })
  const { secret } = adminCredentials
  const hooked = { channel: CHANNEL, extension: SIGNED }
  const guess = 'qX7guess'
  const attempts: readonly [target: { type: string; id: string }, right: object, wrong: object][] =
    [
      [client, { secret }, { secret: guess }],
      [client, { retiringSecret: 'qX7retiring' }, { retiringSecret: guess }],
      [
        client,
        { identityProvider: PROVIDER },
        { identityProvider: { ...PROVIDER, clientSecret: guess } },
      ],
      [hook, hooked, { ...hooked, channel: { ...CHANNEL, header: [guess] } }],
      [hook, hooked, { ...hooked, extension: [...MARK, { ...SIGNED[1], valueString: guess }] }],
    ]
  for (const [name, { client: member }] of Object.entries({ free, starred, writer, named })) {
    for (const [{ type, id }, right, wrong] of attempts) {
      const path = `${type}/${id}`
      const { body } = await member.get<Raw>(path)
      const put = (change: object) => member.put<Raw>(path, { ...body, ...change })
      const patch = (change: object) =>
        member.patch<Raw>(
          path,
          Object.entries(change).map(([key, value]) => ({ op: 'add', path: `/${key}`, value })),
        )
      for (const write of [put, patch]) {
        const answers = [await write(right), await write(wrong)]
        for (const { status, text } of answers) t.equal(status, 403, `${name}: ${text}`)
        t.same(answers[0]?.body.issue, answers[1]?.body.issue, name)
      }
    }
  }
})

const READING: Readonly<Record<string, readonly string[]>> = {
  ClientApplication: [
    'ClientApplication.secret',
    'ClientApplication.secret.lower()',
    'ClientApplication.retiringSecret',
    'ClientApplication.identityProvider.clientId',
    'ClientApplication.children()',
    'ClientApplication.descendants().ofType(string)',
    'ClientApplication.repeat(children()).ofType(string)',
    '%resource.secret',
    "ClientApplication.name | ClientApplication.where(secret = 'x').name",
    "iif(ClientApplication.secret.startsWith('x'), 'y', 'n')",
  ],
  Subscription: [
    'Subscription.channel.header',
    'Subscription.channel.children().ofType(string)',
    "Subscription.extension('https://www.medplum.com/fhir/StructureDefinition/subscription-secret').value",
    "Subscription.extension.where(url.contains('secret')).value",
    'Subscription.descendants().ofType(string)',
  ],
}
const parameter = (type: string, expression: string, code = 'guess') =>
  aSearchParameter({ code, base: [type], type: 'string', expression })

t.test('rejects a SearchParameter that may read a secret, even of administrators', async (t) => {
  for (const [type, expressions] of Object.entries(READING)) {
    for (const expression of expressions) {
      const answer = await admin.post<Raw>('SearchParameter', parameter(type, expression))
      t.equal(answer.status, 400, expression)
      t.match(answer.body.issue?.[0]?.expression, ['SearchParameter.expression'], expression)
    }
  }
  const plain = parameter('ClientApplication', 'ClientApplication.description', 'described')
  t.equal((await admin.post('SearchParameter', plain)).status, 201)
})

t.test('reads no secret in a write constraint of the member’s policy', async (t) => {
  const constraint = (guess: string) => [
    { language: 'text/fhirpath', expression: `%after.secret.startsWith('${guess}')` },
  ]
  const entry = { resourceType: 'ClientApplication', writeConstraint: constraint('none') }
  const { id: policy } = await admin.create({
    resourceType: 'AccessPolicy',
    resource: [entry, { resourceType: 'AccessPolicy' }, ...everything],
  })
  const member = await botica.createMember()
  const access = [{ policy: { reference: `AccessPolicy/${policy}` } }]
  await changeMembership(botica, `ClientApplication/${member.id}`, { access })
  for (const guess of [adminCredentials.secret.slice(0, 5), 'wrong']) {
    const change = [
      { op: 'replace', path: '/resource/0/writeConstraint', value: constraint(guess) },
    ]
    t.equal((await member.client.patch(`AccessPolicy/${policy}`, change)).status, 200)
    botica.services.principals.forget()
    const described = [{ op: 'add', path: '/description', value: guess }]
    const answer = await member.client.patch(`ClientApplication/${adminCredentials.id}`, described)
    t.equal(answer.status, 403, guess)
  }
})
