#!/usr/bin/env -S node --disable-warning=ExperimentalWarning
/** The command line `npm run -s botica -- <command>`: creates, deploys, runs and inspects bots, and sends requests. */
import { spawnSync } from 'node:child_process'
import { watch } from 'node:fs'
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { type MedplumClient, normalizeErrorString } from '@medplum/core'
import { Command, InvalidArgumentError } from 'commander'
import type { AgentOptions } from './agent/agent.ts'
import { type ApiOptions, api } from './api.ts'
import { call, deployFile, follow, type Release, readInput, replay, runs } from './calls.ts'
import { type BotFolder, callerFolder, FIRST_FOLDER, openFolder, openService } from './folder.ts'
import { init } from './init.ts'
import { note, printAnswer, printEvent, printRuns, printSandboxRun } from './print.ts'
import { compare, dryRun, printReleases, promote, rollback } from './releases.ts'

const QUIET_MS = 100
/** Above the wait of an agent for the bot. */
const SEND_MS = 120_000

const program = new Command('botica')
  .description('Create and deploy bots, watch their runs, and send requests.')
  .option('-f, --folder <folder>', `the folder of the bot; this one, else ${FIRST_FOLDER}`)
  .addHelpText(
    'after',
    `
The service and the client that commands act as are MEDPLUM_BASE_URL, MEDPLUM_CLIENT_ID and MEDPLUM_CLIENT_SECRET:
of the environment, else of .env in the folder of the bot. docs/first-hour.md shows all commands in use.`,
  )

program
  .command('init')
  .argument('[folder]', 'is made, and named after the bot', FIRST_FOLDER)
  .option('--name <name>', 'name of the new project, else First project')
  .option('--project <id>', 'an existing project, instead of a new one')
  .option('--url <address>', 'the service; BASE_URL, else http://localhost:8103/')
  .description('create a project, a user, a client for deploys, and a bot with its test')
  .action(init)

program
  .command('dev')
  .description('deploy on each save, and show the log of all runs')
  .action(withFolder(develop))

program
  .command('deploy')
  .argument('[file]', 'the code; the source that medplum.config.json names')
  .option('--label <label>', 'store the code under a label such as staging; else it is live')
  .option('--version <name>', 'name the version; else it has a number')
  .description('deploy the code once')
  .action(
    withFolder((bot, file: string | undefined, release: Release) =>
      deploy(bot, file && fromCaller(file), release),
    ),
  )

program
  .command('call')
  .argument('<input>', 'a file: .json, .hl7, .txt, .csv, .xml, or any other as bytes')
  .option('--label <label>', 'call the code of this label')
  .description('call the deployed bot, and print its answer')
  .action(
    withFolder(async (bot, input: string, { label }: { label?: string }) =>
      printAnswer(await call(bot, fromCaller(input), label)),
    ),
  )

program
  .command('run')
  .argument('[file]', 'the code; the source that medplum.config.json names')
  .option('--input <file>', 'the input of the bot')
  .option('--timeout <seconds>', 'wall and processor time', seconds, 10)
  .description('run a file here, in the sandbox of the workers, on the data of the service')
  .action(withFolder(runHere))

program
  .command('test')
  .description('run the tests of the folder against the service')
  .action(withFolder(test))

program
  .command('token')
  .description('print an access token of the client, for curl')
  .action(withFolder(async ({ medplum }) => console.log(medplum.getAccessToken())))

program
  .command('api')
  .argument('<method>', 'GET, POST, PUT, PATCH or DELETE')
  .argument('<path>', 'below /fhir/R4/, from the root with a leading slash, or an address')
  .argument('[body]', 'JSON, a file, or - for standard input')
  .option('-t, --type <type>', 'media type of the body; chosen by its content')
  .option('-H, --header <header>', 'a further header, "Name: value"', collect, [])
  .option('-s, --select <expression>', 'print only the values of this FHIRPath expression')
  .option('-i, --include', 'print status and headers first')
  .option('-w, --wait', 'ask for an asynchronous response, and wait for its result')
  .option(
    '--as <file>',
    'another client: a file with its id and secret, such as .data/credentials.json',
  )
  .description('send a request and print the response')
  .action(sendRequest)

program
  .command('logs')
  .description('show the log of runs while they happen')
  .action(withFolder((bot) => follow(bot, printEvent)))

program
  .command('runs')
  .option('--count <number>', 'so many of the latest', whole, 20)
  .option('--json', 'all that is known of them')
  .description('list the latest runs')
  .action(
    withFolder(async (bot, { count, json }: { count: number; json?: true }) => {
      const found = await runs(bot, count)
      if (json) console.log(JSON.stringify(found, undefined, 2))
      else printRuns(found)
    }),
  )

program
  .command('agent')
  .option('--listen <address>', 'take HL7 messages at an address such as mllp://0.0.0.0:2575')
  .option('--bot <bot>', 'the bot that gets them: its id, or an identifier as system|value')
  .option('--agent <id>', 'serve the channels of this Agent instead')
  .description('pass HL7 messages of devices to bots, until Ctrl-C')
  .action(
    withService(async (medplum, options: AgentOptions) => {
      // Loaded on demand: no other command talks to devices.
      const { runAgent } = await import('./agent/agent.ts')
      await runAgent(medplum, options)
    }),
  )

program
  .command('send')
  .argument('<message>', 'a file with an HL7 message')
  .argument('<address>', 'a listener such as mllp://localhost:2575')
  .description('send a message over MLLP, and print its acknowledgement')
  .action(async (file: string, address: string) => {
    const { sendMllp } = await import('./agent/mllp.ts')
    const { text } = await readInput(fromCaller(file))
    const ack = await sendMllp(address, text, 'first', SEND_MS)
    printAnswer({ text: ack, isJson: false })
  })

program
  .command('replay')
  .argument('[run]', 'id of a run; the latest that failed')
  .description('run the bot again on the input of an earlier run')
  .action(withFolder(async (bot, run?: string) => printAnswer(await replay(bot, run))))

program
  .command('releases')
  .description('list the versions of the code, with their labels')
  .action(withFolder(printReleases))

program
  .command('promote')
  .argument('[from]', 'a label or a version', 'staging')
  .option('--to <label>', 'the label that gets the code; live')
  .option('--share <percent>', 'send this part of the live calls to the label instead', percent)
  .description('make the code of a label or version live')
  .action(withFolder(promote))

program
  .command('rollback')
  .argument('[version]', 'the one before')
  .description('return the live code to an earlier version')
  .action(withFolder(rollback))

program
  .command('compare')
  .argument('[from]', 'a label or a version', 'live')
  .argument('[to]', 'a label or a version', 'staging')
  .description('show the lines in which two versions differ')
  .action(withFolder(compare))

program
  .command('load-package')
  .argument('<package>', 'a .tgz file, or its address')
  .description('store the profiles, value sets and other definitions of an implementation guide')
  .action(
    withService(async (medplum, place: string) => {
      // Loaded on demand: no other command reads archives.
      const { loadPackage } = await import('./packages.ts')
      await loadPackage(medplum, place)
    }),
  )

program
  .command('dry-run')
  .argument('[version]', 'a label or a version', 'staging')
  .option('--count <runs>', 'the latest runs; 100')
  .option('--since <time>', 'those that started then or later')
  .description('repeat past runs with a version, without effects, and compare the answers')
  .action(withFolder(dryRun))

type Action<Opened, Words extends unknown[]> = (opened: Opened, ...words: Words) => Promise<unknown>

/** Opens the folder first; passes on commander's last arguments. */
function withFolder<Words extends unknown[]>(action: Action<BotFolder, Words>) {
  return async (...words: Words) => {
    await action(await openFolder(givenFolder()), ...words)
  }
}

/** Signs in first, as `withFolder` does, for a command that needs no bot. */
function withService<Words extends unknown[]>(action: Action<MedplumClient, Words>) {
  return async (...words: Words) => {
    await action(await openService(givenFolder()), ...words)
  }
}

function givenFolder(): string | undefined {
  return program.opts<{ folder?: string }>().folder
}

async function deploy(bot: BotFolder, file = bot.source, release: Release = {}): Promise<void> {
  const warnings = await deployFile(bot.medplum, bot.botId, file, release)
  for (const warning of warnings) note('yellow', warning)
  note('green', `deployed ${path.basename(file)}`)
}

async function develop(bot: BotFolder): Promise<void> {
  const save = () => deploy(bot).catch((error) => note('red', normalizeErrorString(error)))
  await save()
  await Promise.all([follow(bot, printEvent), deployOnSave(bot, save)])
}

async function deployOnSave({ source }: BotFolder, save: () => Promise<void>): Promise<void> {
  let saved = await readFile(source, 'utf8')
  let pending: Promise<void> | undefined
  const look = async () => {
    await delay(QUIET_MS)
    pending = undefined
    const text = await readFile(source, 'utf8').catch(() => saved)
    if (text === saved) return
    saved = text
    await save()
  }
  // Editors replace files, so the folder is watched.
  watch(path.dirname(source), () => (pending ??= look()))
  note('dim', `waiting for changes of ${source}; Ctrl-C ends`)
}

async function sendRequest(
  method: string,
  target: string,
  body: string | undefined,
  options: ApiOptions & { readonly as?: string },
): Promise<void> {
  const { medplum } = await openFolder(givenFolder(), options.as)
  await api(medplum, { method, target, body }, options)
}

interface RunOptions {
  readonly input?: string
  readonly timeout: number
}

async function runHere(bot: BotFolder, file: string | undefined, options: RunOptions) {
  const { input, timeout } = options
  const given = input === undefined ? undefined : await readInput(fromCaller(input))
  const code = file === undefined ? bot.source : fromCaller(file)
  // Loaded on demand: the sandbox is half of the code.
  const { runInSandbox } = await import('./sandbox.ts')
  const ran = await runInSandbox(bot.medplum, code, given, timeout)
  if (!printSandboxRun(ran)) process.exitCode = 1
}

async function test({ folder }: BotFolder): Promise<void> {
  const args = ['--disable-warning=ExperimentalWarning', '--test']
  const { status } = spawnSync(process.execPath, args, { cwd: folder, stdio: 'inherit' })
  process.exitCode = status ?? 1
}

function fromCaller(file: string): string {
  return path.resolve(callerFolder(), file)
}

function collect(text: string, earlier: readonly string[]): readonly string[] {
  return [...earlier, text]
}

function seconds(text: string): number {
  if (Number(text) > 0) return Number(text)
  throw new InvalidArgumentError('It must be a number above 0.')
}

function percent(text: string): number {
  if (/^\d{1,3}$/.test(text) && Number(text) <= 100) return Number(text)
  throw new InvalidArgumentError('It must be a whole number from 0 to 100.')
}

function whole(text: string): number {
  if (/^[1-9]\d*$/.test(text)) return Number(text)
  throw new InvalidArgumentError('It must be a whole number above 0.')
}

try {
  await program.parseAsync()
} catch (error) {
  note('red', normalizeErrorString(error))
  process.exitCode = 1
}
