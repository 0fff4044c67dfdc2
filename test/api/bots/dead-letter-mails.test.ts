import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { anEmail, mailsTo } from '../../fixtures/invites.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

// A worker looks for new dead letters every six sweeps.
const WAITS = JSON.stringify({ ...JSON.parse(process.env.WAITS ?? '{}'), sweepMs: 200 })
const botica = await openBotica(t, {
  worker: 'process',
  env: {
    WAITS,
    DATABASE_URL: await createDatabase(t),
    // Without the queue of mails, so that they wait.
    WORKER_QUEUES: 'bots-sync,bots-async,upkeep',
  },
})
const { admin, project, services, superAdmin } = botica
const LATER = { Prefer: 'respond-async' }
const failing = () => aBot(botica, handler(`throw new Error('Mrs. Miller is unknown')`))

async function setMail(...to: readonly string[]): Promise<void> {
  const { body } = await superAdmin.get<Untyped>(`Project/${project.id}`)
  const setting = to.length > 0 ? [{ name: 'deadLetterMail', valueString: to.join(', ') }] : []
  const { status, text } = await superAdmin.put(`Project/${project.id}`, { ...body, setting })
  if (status !== 200) throw new Error(text)
}

async function fail(bot: string): Promise<void> {
  const dead = async () => {
    const { body } = await admin.get<Untyped>(`Bot/$dead-letters?target=Bot/${bot}&_count=1000`)
    return body.parameter?.length ?? 0
  }
  const before = await dead()
  await execute(admin, bot, {}, LATER)
  await until(async () => (await dead()) === before + 1, 60_000)
}

t.test('mails about each bot with failed runs once a day', async (t) => {
  const [email, second] = [anEmail('ops'), anEmail('lead')]
  await setMail(email, second)
  const mailsAbout = async (bot: string) => {
    const mails = await mailsTo(services, email)
    return mails.filter(({ text }) => text?.includes(`Bot/${bot}`))
  }
  const bot = await failing()
  await fail(bot)
  await until(async () => (await mailsAbout(bot)).length === 1, 90_000)
  const [mail] = await mailsAbout(bot)
  t.match(mail, { kind: 'dead-letters', to: [email, second] })
  t.match(mail?.text, `1 runs of Bot/${bot}`)
  t.match(mail?.text, `${services.config.baseUrl}console/dead-letters?target=Bot/${bot}`)
  t.notMatch(mail?.text, 'Miller', 'the error may have data of patients')

  // The mail about another bot shows that the next failures have been looked at.
  await fail(bot)
  const other = await failing()
  await fail(other)
  await until(async () => (await mailsAbout(other)).length === 1, 90_000)
  t.equal((await mailsAbout(bot)).length, 1, 'no second mail on the same day')

  await services.database.query({
    text: `update dead_notice set at = at - interval '25 hours' where bot = $1`,
    values: [bot],
  })
  await until(async () => (await mailsAbout(bot)).length === 2, 90_000)
  t.equal((await mailsAbout(other)).length, 1)
})

t.test('sends no mail without the setting', async (t) => {
  await setMail()
  const bot = await failing()
  await fail(bot)
  await until(async () => {
    const rows = await services.database.query({
      text: 'select from dead_notice where bot = $1',
      values: [bot],
    })
    return rows.length === 1
  }, 90_000)
  const rows = await services.database.query({
    text: `select from mail where message->>'text' like $1`,
    values: [`%${bot}%`],
  })
  t.equal(rows.length, 0)
})
