// Prints what the npm package isoxml reads in the logs of a TaskData archive, one
// line of JSON for each record, and then how long it takes to decode them:
// node peer.mjs FILE
import fs from 'node:fs';
import {createInterface} from 'node:readline';
import isoxml from 'isoxml';

const manager = new isoxml.ISOXMLManager({version: 4, rootFolder: ''});
await manager.parseISOXMLFile(fs.readFileSync(process.argv[2]), 'application/zip');
const logs = (manager.rootElement.attributes.Task || []).flatMap(task => task.attributes.TimeLog || []);
const out = [];
for (const log of logs) {
  for (const record of log.parseBinaryFile().timeLogs) {
    const p = record.position || {};
    out.push(JSON.stringify({
      log: log.attributes.Filename, time: record.time.getTime(), north: p.PositionNorth, east: p.PositionEast, up: p.PositionUp,
      status: p.PositionStatus, pdop: p.PDOP, hdop: p.HDOP, satellites: p.NumberOfSatellites, utcTime: p.GpsUtcTime, utcDate: p.GpsUtcDate,
      valid: record.isValidPosition, values: record.values,
    }));
  }
}
fs.writeFileSync(1, out.join('\n') + '\n');
// Whoever reads this compares speed in turns: for each line that it writes the logs are decoded once more.
for await (const _ of createInterface({input: process.stdin})) {
  for (const log of logs) log.parsedTimeLog = null;
  const start = process.hrtime.bigint();
  for (const log of logs) log.parseBinaryFile();
  fs.writeFileSync(1, JSON.stringify({nanoseconds: Number(process.hrtime.bigint() - start)}) + '\n');
}
