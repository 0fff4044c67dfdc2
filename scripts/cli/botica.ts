#!/usr/bin/env -S node --disable-warning=ExperimentalWarning
/** The command line `npm run -s botica -- <command>`: creates, deploys, runs and inspects bots. */
import { spawnSync } from 'node:child_process'
import { watch } from 'node:fs'
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { Command, InvalidArgumentError } from 'commander'
import { formatError } from '../session.ts'
import { call, deployFile, follow, readInput, replay, runs } from './calls.ts'
import { type BotFolder, callerFolder, FIRST_FOLDER, openFolder } from './folder.ts'
import { init } from './init.ts'
import { note, printAnswer, printEvent, printRuns, printSandboxRun } from './print.ts'

const QUIET_MS = 100

const program = new Command('botica')
  .description('Make bots, deploy them, and see what their runs do.')
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
  .description(
    'make a project, a person who can sign in, a client that may deploy, and a bot with its test',
  )
  .action(init)

program
  .command('dev')
  .description('deploy on each save, and show the log of all runs')
  .action(withFolder(develop))

program
  .command('deploy')
  .argument('[file]', 'the code; the source that medplum.config.json names')
  .description('deploy the code once')
  .action(withFolder((bot, file?: string) => deploy(bot, file && fromCaller(file))))

program
  .command('call')
  .argument('<input>', 'a file: .json, .hl7, .txt, .csv, .xml, or any other as bytes')
  .description('call the deployed bot, and print its answer')
  .action(withFolder(async (bot, input: string) => printAnswer(await call(bot, fromCaller(input)))))

program
  .command('run')
  .argument('[file]', 'the code; the source that medplum.config.json names')
  .option('--input <file>', 'what the bot is called with')
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
  .command('replay')
  .argument('[run]', 'id of a run; the latest that failed')
  .description('run the bot again on the input of an earlier run')
  .action(withFolder(async (bot, run?: string) => printAnswer(await replay(bot, run))))

type Action<Words extends unknown[]> = (bot: BotFolder, ...words: Words) => Promise<unknown>

/** Opens the folder first; passes on commander's last arguments. */
function withFolder<Words extends unknown[]>(action: Action<Words>) {
  return async (...words: Words) => {
    await action(await openFolder(program.opts<{ folder?: string }>().folder), ...words)
  }
}

async function deploy(bot: BotFolder, file = bot.source): Promise<void> {
  const warnings = await deployFile(bot.medplum, bot.botId, file)
  for (const warning of warnings) note('yellow', warning)
  note('green', `deployed ${path.basename(file)}`)
}

async function develop(bot: BotFolder): Promise<void> {
  const save = () => deploy(bot).catch((error) => note('red', formatError(error)))
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

function seconds(text: string): number {
  if (Number(text) > 0) return Number(text)
  throw new InvalidArgumentError('It must be a number above 0.')
}

function whole(text: string): number {
  if (/^[1-9]\d*$/.test(text)) return Number(text)
  throw new InvalidArgumentError('It must be a whole number above 0.')
}

try {
  await program.parseAsync()
} catch (error) {
  note('red', formatError(error))
  process.exitCode = 1
}
